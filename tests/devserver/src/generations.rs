//! Signing authorities of one kind over time: prepared, activated, tainted, revoked. Pure.

/// One authority and its standing.
#[derive(Debug)]
pub(crate) struct Generation<T> {
    pub(crate) authority: T,
    /// Still in the bundle, marked as not to be trusted for long.
    pub(crate) tainted: bool,
    /// No longer in the bundle.
    pub(crate) revoked: bool,
}

/// All generations, the oldest first, and which one signs.
#[derive(Debug)]
pub(crate) struct Generations<T> {
    all: Vec<Generation<T>>,
    active: usize,
}

impl<T> Generations<T> {
    /// `first` is number 0 and active.
    pub(crate) fn new(first: T) -> Self {
        let mut generations = Self {
            all: Vec::new(),
            active: 0,
        };
        generations.prepare(first);
        generations
    }

    /// Adds a generation to the bundle and returns its number. It signs nothing until it is activated.
    pub(crate) fn prepare(&mut self, authority: T) -> usize {
        self.all.push(Generation {
            authority,
            tainted: false,
            revoked: false,
        });
        self.all.len() - 1
    }

    /// Lets generation `number` sign from now on. False if there is none of that number.
    pub(crate) fn activate(&mut self, number: usize) -> bool {
        let known = number < self.all.len();
        if known {
            self.active = number;
        }
        known
    }

    /// Marks generation `number` as tainted in the bundle. False if there is none of that number.
    pub(crate) fn taint(&mut self, number: usize) -> bool {
        self.all
            .get_mut(number)
            .map(|generation| generation.tainted = true)
            .is_some()
    }

    /// Takes generation `number` out of the bundle. False if there is none of that number.
    pub(crate) fn revoke(&mut self, number: usize) -> bool {
        self.all
            .get_mut(number)
            .map(|generation| generation.revoked = true)
            .is_some()
    }

    /// The number of the generation that signs.
    pub(crate) fn active(&self) -> usize {
        self.active
    }

    /// Generation `number`, or the active one where there is none of that number.
    pub(crate) fn find(&self, number: usize) -> Option<&T> {
        self.all
            .get(number)
            .or_else(|| self.all.get(self.active))
            .map(|generation| &generation.authority)
    }

    /// Every generation with its number, the oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, &Generation<T>)> {
        self.all.iter().enumerate()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prepared_generation_signs_only_once_it_is_activated() {
        let mut generations = Generations::new("first");
        let second = generations.prepare("second");

        let before = generations.find(generations.active()).copied();
        let activated = generations.activate(second);

        assert_eq!(before, Some("first"));
        assert!(activated);
        assert_eq!(generations.find(generations.active()), Some(&"second"));
    }

    #[test]
    fn nothing_can_be_done_to_a_generation_that_does_not_exist() {
        let mut generations = Generations::new(());

        let results = [
            generations.activate(1),
            generations.taint(1),
            generations.revoke(1),
        ];

        assert_eq!(results, [false; 3]);
        assert_eq!(generations.active(), 0);
    }
}
