//! Pages of some jobs of a type.

use jobs::{Cursor, JobType, Jobs, Listed, Query};

/// Some of the next jobs.
pub(crate) struct Picked<T> {
    pub(crate) jobs: Vec<T>,
    /// How many jobs were looked at for that.
    pub(crate) looked: usize,
    /// Where those after them begin; `None` at the end.
    pub(crate) cursor: Option<Cursor>,
}

/// Up to `max` of the next jobs that `pick` wants. Looks at no fewer than `at_least` together, of which few may be wanted.
pub(crate) async fn picked<T>(
    jobs: &Jobs,
    ty: &JobType,
    query: &Query,
    after: Option<&Cursor>,
    (max, at_least): (usize, usize),
    pick: impl Fn(Listed) -> Option<T>,
) -> jobs::Result<Picked<T>> {
    let mut length = max.max(at_least);
    loop {
        let page = jobs.list(ty, query, after, length).await?;
        let found: Vec<_> = page.jobs.into_iter().map(&pick).collect();
        let mut wanted = found.iter().enumerate().filter(|(_, one)| one.is_some());
        if let Some((last, _)) = wanted.nth(max - 1)
            && last + 1 < found.len()
        {
            // Again, because the next page begins behind these.
            length = last + 1;
            continue;
        }
        return Ok(Picked {
            looked: found.len(),
            jobs: found.into_iter().flatten().collect(),
            cursor: page.cursor,
        });
    }
}
