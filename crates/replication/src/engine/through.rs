//! The position up to which everything is finished.
//!
//! Batches finish in any order. The *through* sequence is the position before which nothing is unfinished: the only one
//! that a checkpoint may record. Sequences are opaque, so batches are ordered by number.

use std::collections::VecDeque;

use couch::Seq;

use super::Mistake;

/// A batch in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket(u64);

#[derive(Debug)]
pub(super) struct Through {
    /// The number of the first batch in `batches`.
    first: u64,
    /// Batches from the oldest unfinished one on: their end, if known, and whether they are finished.
    batches: VecDeque<(Option<Seq>, bool)>,
    position: Seq,
    /// The end of the newest finished batch, with its number.
    highest_done: Option<(u64, Seq)>,
    planted: Option<Mistake>,
}

impl Through {
    pub(super) fn new(start: Seq, planted: Option<Mistake>) -> Self {
        Self {
            first: 0,
            batches: VecDeque::new(),
            position: start,
            highest_done: None,
            planted,
        }
    }

    /// Starts a batch that ends at `end`; `None` if its end is not a position to resume from.
    pub(super) fn begin(&mut self, end: Option<Seq>) -> Ticket {
        self.batches.push_back((end, false));
        Ticket(self.first + self.batches.len() as u64 - 1)
    }

    /// Forgets the abandoned batches in progress: what follows starts at the through sequence.
    pub(super) fn give_up(&mut self) {
        self.first += self.batches.len() as u64;
        self.batches.clear();
    }

    /// Finishes a batch. Returns whether the through sequence moved.
    pub(super) fn finish(&mut self, ticket: Ticket) -> bool {
        let Some(index) = ticket
            .0
            .checked_sub(self.first)
            .and_then(|index| usize::try_from(index).ok())
        else {
            return false;
        };
        let Some(batch) = self.batches.get_mut(index) else {
            return false;
        };
        batch.1 = true;
        if let Some(end) = &batch.0
            && self
                .highest_done
                .as_ref()
                .is_none_or(|(number, _)| *number < ticket.0)
        {
            self.highest_done = Some((ticket.0, end.clone()));
        }
        let mut moved = false;
        if self.planted == Some(Mistake::PassesUnfinished)
            && let Some((_, end)) = &self.highest_done
        {
            self.position = end.clone();
        }
        while let Some((end, true)) = self.batches.front() {
            if let Some(end) = end {
                moved |= self.position != *end;
                self.position = end.clone();
            }
            self.batches.pop_front();
            self.first += 1;
        }
        moved
    }

    /// Everything up to here is finished.
    pub(super) fn through(&self) -> &Seq {
        &self.position
    }

    /// The newest sequence of a finished batch; `None` if there is none.
    pub(super) fn highest_done(&self) -> Option<&Seq> {
        self.highest_done.as_ref().map(|(_, seq)| seq)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn seq(number: u64) -> Seq {
        Seq::from_json(&number.to_string()).unwrap()
    }

    #[test]
    fn never_passes_unfinished_batches() {
        let mut through = Through::new(seq(0), None);
        let [first, second, third] = [1, 2, 3].map(|end| through.begin(Some(seq(end))));
        assert!(!through.finish(second));
        assert_eq!(
            (through.through(), through.highest_done()),
            (&seq(0), Some(&seq(2)))
        );
        assert!(through.finish(first));
        assert_eq!(through.through(), &seq(2));
        assert!(through.finish(third));
        assert_eq!(through.through(), &seq(3));
    }

    #[test]
    fn batches_without_a_position_hold_the_place() {
        let mut through = Through::new(seq(0), None);
        let first = through.begin(None);
        let second = through.begin(Some(seq(9)));
        assert!(!through.finish(second));
        assert!(through.finish(first));
        assert_eq!(through.through(), &seq(9));
        let third = through.begin(None);
        assert!(!through.finish(third));
        assert_eq!(through.through(), &seq(9));
    }

    #[test]
    fn batches_that_were_given_up_hold_nothing_back() {
        let mut through = Through::new(seq(0), None);
        let [first, second] = [1, 2].map(|end| through.begin(Some(seq(end))));
        through.finish(second);
        through.give_up();
        assert_eq!(through.through(), &seq(0));
        let third = through.begin(Some(seq(1)));
        assert!(!through.finish(first), "it is too late for that");
        assert!(through.finish(third));
        assert_eq!(
            (through.through(), through.highest_done()),
            (&seq(1), Some(&seq(1)))
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        /// Checks the definition: the end of the newest batch before which all are finished.
        #[test]
        fn equals_its_definition(
            ends in prop::collection::vec(any::<bool>(), 1..40),
            order in any::<prop::sample::Index>(),
            seed in any::<u64>(),
        ) {
            let mut through = Through::new(seq(0), None);
            let mut open: Vec<_> = (1..).zip(&ends).map(|(number, has_end)| {
                (number, through.begin(has_end.then(|| seq(number))))
            }).collect();
            let mut done = vec![false; ends.len()];
            let mut random = seed ^ order.index(usize::MAX) as u64;
            while !open.is_empty() {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let index = usize::try_from(random >> 33).unwrap() % open.len();
                let (number, ticket) = open.remove(index);
                done[usize::try_from(number).unwrap() - 1] = true;
                through.finish(ticket);
                let finished = done.iter().take_while(|done| **done).count();
                let expected = (0..finished).rev().find(|index| ends[*index]).map_or(0, |index| index as u64 + 1);
                prop_assert_eq!(through.through(), &seq(expected));
            }
        }
    }
}
