//! The metrics of a node at one time.

use std::collections::BTreeMap;

use anyhow::Context;

use crate::client::Client;

#[derive(Debug)]
pub(crate) struct Metrics(String);

impl Metrics {
    pub(crate) async fn of(node: &Client) -> anyhow::Result<Self> {
        let metrics = node.get("_metrics").await?;
        let text = metrics.as_str().context("the service has no metrics")?;
        Ok(Self(text.to_owned()))
    }

    /// The sum of a metric over all labels.
    pub(crate) fn sum(&self, name: &str) -> f64 {
        self.samples(name).map(|(_, value)| value).sum()
    }

    /// A metric by one of its labels.
    pub(crate) fn by(&self, name: &str, label: &str) -> BTreeMap<&str, f64> {
        let mut found = BTreeMap::new();
        for (labels, value) in self.samples(name) {
            let start = format!("{label}=\"");
            let rest = labels.split_once(&start).map(|(_, rest)| rest);
            if let Some((of, _)) = rest.and_then(|rest| rest.split_once('"')) {
                *found.entry(of).or_default() += value;
            }
        }
        found
    }

    /// Labels and values.
    fn samples(&self, name: &str) -> impl Iterator<Item = (&str, f64)> {
        self.0.lines().filter_map(move |line| {
            let (labels, value) = line.strip_prefix(name)?.rsplit_once(' ')?;
            let is_it = labels.is_empty() || labels.starts_with('{');
            Some((labels, value.parse().ok().filter(|_| is_it)?))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_found() {
        let text = "# TYPE a counter\na{x=\"1\",y=\"p\"} 2\na{x=\"1\",y=\"q\"} 3\na{x=\"2\"} 4\na_b 9\nc 0.5\n";
        let metrics = Metrics(text.to_owned());
        assert!((metrics.sum("a") - 9.0).abs() < 1e-9);
        assert!((metrics.sum("c") - 0.5).abs() < 1e-9);
        assert_eq!(
            metrics.by("a", "x"),
            BTreeMap::from([("1", 5.0), ("2", 4.0)])
        );
    }
}
