//! Selectors: what is known of a workload, and what an entry asks of one. Pure.

use std::fmt;
use std::sync::Arc;

/// One fact, such as `unix:uid:1000`: type `unix`, value `uid:1000`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Selector {
    kind: Arc<str>,
    value: Arc<str>,
}

/// Selectors of one workload or entry: sorted, without repetition.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct SelectorSet(Arc<[Selector]>);

/// Why a selector from outside is not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    /// The type is empty.
    #[error("selector type is empty")]
    EmptyType,
    /// The type contains a colon, so that type and value could not be told apart.
    #[error("selector type contains ':'")]
    ColonInType,
    /// The value is empty.
    #[error("selector value is empty")]
    EmptyValue,
}

impl Selector {
    /// Checks type and value as the reference does (node-side 4.7).
    pub fn new(kind: &str, value: &str) -> Result<Self, SelectorError> {
        match (kind, value) {
            ("", _) => Err(SelectorError::EmptyType),
            (k, _) if k.contains(':') => Err(SelectorError::ColonInType),
            (_, "") => Err(SelectorError::EmptyValue),
            _ => Ok(Self {
                kind: kind.into(),
                value: value.into(),
            }),
        }
    }

    /// The attestor's name.
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// What the attestor says.
    pub fn value(&self) -> &str {
        &self.value
    }
}

impl SelectorSet {
    /// All selectors, sorted.
    pub fn iter(&self) -> std::slice::Iter<'_, Selector> {
        self.0.iter()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the set holds this one.
    pub fn contains(&self, selector: &Selector) -> bool {
        self.0.binary_search(selector).is_ok()
    }

    /// Whether every selector of this set is in the other: the match rule for entries (workload-side 1.7).
    pub fn is_subset_of(&self, other: &Self) -> bool {
        self.0.iter().all(|selector| other.contains(selector))
    }
}

impl FromIterator<Selector> for SelectorSet {
    fn from_iter<I: IntoIterator<Item = Selector>>(selectors: I) -> Self {
        let mut all: Vec<_> = selectors.into_iter().collect();
        all.sort_unstable();
        all.dedup();
        Self(all.into())
    }
}

impl<'a> IntoIterator for &'a SelectorSet {
    type Item = &'a Selector;
    type IntoIter = std::slice::Iter<'a, Selector>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind, self.value)
    }
}

/// Shows the type alone: values may hold a container's environment (design D18).
impl fmt::Debug for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:…", self.kind)
    }
}

impl fmt::Debug for SelectorSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} selectors", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(values: &[&str]) -> SelectorSet {
        values
            .iter()
            .map(|value| Selector::new("unix", value).unwrap())
            .collect()
    }

    #[test]
    fn a_set_is_sorted_and_without_repetition() {
        let set = set(&["uid:2", "uid:1", "uid:2"]);

        assert_eq!(
            set.iter().map(Selector::value).collect::<Vec<_>>(),
            ["uid:1", "uid:2"]
        );
    }

    #[test]
    fn a_subset_lacks_nothing_in_the_other() {
        let workload = set(&["uid:1", "gid:1"]);

        assert!(set(&["uid:1"]).is_subset_of(&workload));
        assert!(set(&[]).is_subset_of(&workload));
        assert!(!set(&["uid:1", "gid:2"]).is_subset_of(&workload));
    }

    #[test]
    fn odd_selectors_are_refused() {
        assert_eq!(Selector::new("", "x"), Err(SelectorError::EmptyType));
        assert_eq!(Selector::new("a:b", "x"), Err(SelectorError::ColonInType));
        assert_eq!(Selector::new("unix", ""), Err(SelectorError::EmptyValue));
        assert_eq!(
            Selector::new("docker", "label:a:b").unwrap().to_string(),
            "docker:label:a:b"
        );
    }
}
