//! Many reads at once.

use futures::future::try_join_all;
use futures::stream::{FuturesUnordered, TryStreamExt};

/// Reads that are polled together. A future that has a waker of its own costs more than a read of a local store, which
/// is done when it is first polled.
const TOGETHER: usize = 30;

/// Runs reads of a transaction at once, and returns what they found in their order, or the first error.
pub async fn read_all<R, T, E>(reads: impl IntoIterator<Item = R>) -> Result<Vec<T>, E>
where
    R: Future<Output = Result<T, E>>,
{
    let mut reads: Vec<R> = reads.into_iter().collect();
    if reads.len() == 1
        && let Some(read) = reads.pop()
    {
        return Ok(vec![Box::pin(read).await?]);
    }
    if reads.len() <= TOGETHER {
        return try_join_all(reads).await;
    }
    Box::pin(in_groups(reads)).await
}

async fn in_groups<R, T, E>(mut reads: Vec<R>) -> Result<Vec<T>, E>
where
    R: Future<Output = Result<T, E>>,
{
    let mut groups = FuturesUnordered::new();
    while !reads.is_empty() {
        let group = reads.split_off(reads.len().saturating_sub(TOGETHER));
        let (before, group) = (reads.len(), try_join_all(group));
        groups.push(async move { Ok((before, group.await?)) });
    }
    let mut found = Vec::with_capacity(groups.len());
    while let Some(group) = groups.try_next().await? {
        found.push(group);
    }
    found.sort_unstable_by_key(|(before, _)| *before);
    Ok(found.into_iter().flat_map(|(_, group)| group).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_was_found_is_in_order() {
        for count in [0, 1, TOGETHER, TOGETHER + 1, 10 * TOGETHER + 1] {
            // Later ones are done earlier.
            let reads = (0..count).map(|number| async move {
                for _ in number..count {
                    tokio::task::yield_now().await;
                }
                Ok::<_, ()>(number)
            });
            let found = read_all(reads).await;
            assert_eq!(found, Ok((0..count).collect()), "{count}");
        }
    }

    #[tokio::test]
    async fn an_error_ends_all() {
        let reads = (0..100).map(|number| async move {
            if number == 70 {
                return Err(number);
            }
            std::future::pending().await
        });
        let found: Result<Vec<()>, usize> = read_all(reads).await;
        assert_eq!(found, Err(70));
    }
}
