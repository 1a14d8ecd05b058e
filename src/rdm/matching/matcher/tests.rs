// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The matcher is compared with two lists that are walked from the beginning, and the steps that a match takes are
//! counted.

use crate::rdm::matching::matcher::*;
use crate::rdm::matching::message_lists::STEPS;

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % n
    }
}

impl<R, U> Matcher<R, U> {
    fn put(&mut self, want: RecvFilter, item: impl FnOnce() -> R) -> EntryId {
        // This helper numbers the receives of one matcher; an endpoint numbers the receives of its two matchers together.
        self.count_kept += 1;
        self.post(self.count_kept, want, item)
    }
}

/// The reference: two lists, walked from the beginning.
#[derive(Default)]
struct Model {
    posted: Vec<(RecvFilter, u32)>,
    unexpected: Vec<(u64, u64, u32)>,
}

impl Model {
    fn arrive(&mut self, source: u64, tag: u64, id: u32) -> Option<u32> {
        match self.posted.iter().position(|(w, _)| w.takes(source, tag)) {
            Some(at) => Some(self.posted.remove(at).1),
            None => {
                self.unexpected.push((source, tag, id));
                None
            }
        }
    }

    fn peek(&self, want: &RecvFilter) -> Option<usize> {
        self.unexpected.iter().position(|(s, t, _)| want.takes(*s, *t))
    }
}

fn run(seed: u64, masks: &[u64], steps: u32) {
    let (mut matcher, mut model, mut random) = (Matcher::<u32, u32>::default(), Model::default(), Random(seed));
    for id in 0..steps {
        let source = random.below(4);
        let tag = random.below(3) << 60 | random.below(3) << 8 | random.below(3);
        let source_wanted = if random.below(3) == 0 { UNSPEC } else { source };
        let want = RecvFilter { source: source_wanted, tag, ignore: masks[random.below(masks.len() as u64) as usize] };
        match random.below(20) {
            0..8 => {
                let found = matcher.find_posted(source, tag).and_then(|at| matcher.remove_posted(at, source));
                if found.is_none() {
                    matcher.keep(source, tag, id);
                }
                assert_eq!(found, model.arrive(source, tag, id));
            }
            8..16 => {
                let found = matcher.find_unexpected(&want).and_then(|at| matcher.remove_unexpected(at));
                if found.is_none() {
                    matcher.put(want, || id);
                }
                match model.peek(&want) {
                    Some(at) => assert_eq!(found, Some(model.unexpected.remove(at).2)),
                    None => {
                        assert_eq!(found, None);
                        model.posted.push((want, id));
                    }
                }
            }
            16 => {
                // Peek; half of the peeks claim the message.
                let found = matcher.find_unexpected(&want);
                let seen = found.and_then(|at| matcher.unexpected(at)).map(|(s, t, u)| (s, t, *u));
                let there = model.peek(&want);
                assert_eq!(seen, there.map(|at| model.unexpected[at]));
                if let (Some(at), Some(there), 0) = (found, there, random.below(2)) {
                    assert_eq!(matcher.remove_unexpected(at), Some(model.unexpected.remove(there).2));
                }
            }
            17 | 18 => {
                // Cancel a posted receive.
                let victim = random.below(u64::from(id) + 1) as u32;
                let place = matcher.search_posted(|r| *r == victim).next();
                let found = place.and_then(|(_, at)| matcher.withdraw_posted(at));
                let there = model.posted.iter().position(|(_, r)| *r == victim);
                assert_eq!(found, there.map(|at| model.posted.remove(at).1));
            }
            _ => {
                let other = random.below(4);
                model.unexpected.iter_mut().filter(|(s, ..)| *s == source).for_each(|(s, ..)| *s = other);
                matcher.refile(|id| model.unexpected.iter().find(|(.., m)| m == id).map(|(s, ..)| *s));
                assert!(matcher.each_unexpected().map(|(_, id)| id).eq(model.unexpected.iter().map(|(.., id)| id)));
            }
        }
        assert_eq!(matcher.posted_count(), model.posted.len());
        assert_eq!(matcher.unexpected_count(), model.unexpected.len());
        assert_eq!(matcher.each_posted().count(), model.posted.len());
        if random.below(400) == 0 {
            let all: Vec<_> = matcher.search_posted(|_| true).collect();
            for (_, at) in all {
                matcher.withdraw_posted(at);
            }
            model.posted.clear();
        }
    }
}

#[test]
fn it_matches_as_two_lists_do() {
    for seed in 0..6 {
        run(seed, &[0], 4_000);
        run(seed, &[0, u64::MAX, 0xff, 0xf << 60], 4_000);
    }
}

#[test]
fn more_masks_than_classes_match_as_well() {
    let masks: Vec<u64> = (0..40).map(|i| (1u64 << i) - 1).chain([u64::MAX]).collect();
    for seed in 0..6 {
        run(seed, &masks, 4_000);
    }
}

#[test]
fn lists_are_freed() {
    let mut m = Matcher::<(), ()>::default();
    for tag in 0..1000 {
        let at = m.put(RecvFilter { source: 1, tag, ignore: 0 }, || ());
        m.remove_posted(at, 1);
        let at = m.keep(1, tag, ());
        m.remove_unexpected(at);
    }
    assert!(m.posted.is_as_new() && m.by_key.is_empty() && m.unexpected.is_as_new());
}

/// Receives of a key that was the only one are found in their order after a second key has appeared.
#[test]
fn a_sole_key_moves_to_the_hash_when_another_comes() {
    let exact = |tag| RecvFilter { source: 1, tag, ignore: 0 };
    let take = |m: &mut Matcher<u64, ()>, tag| m.find_posted(1, tag).and_then(|at| m.remove_posted(at, 1));
    for (alone, taken) in [(1, 0), (2, 0), (2, 1), (3, 1), (3, 2), (9, 4)] {
        for others in [1, 200] {
            let mut m = Matcher::<u64, ()>::default();
            for i in 0..alone {
                m.put(exact(7), || i);
            }
            (0..taken).for_each(|i| assert_eq!(take(&mut m, 7), Some(i)));
            for i in 0..others {
                m.put(exact(1000 + i), || i);
            }
            m.put(exact(7), || alone);
            (taken..=alone).for_each(|i| assert_eq!(take(&mut m, 7), Some(i)));
            assert_eq!(take(&mut m, 7), None);
            (0..others).for_each(|i| assert_eq!(take(&mut m, 1000 + i), Some(i)));
            assert_eq!(m.posted_count(), 0);
        }
    }
}

/// The test counts probes of lists and hashes, so that it does not depend on time.
#[test]
fn a_match_costs_the_same_with_10000_waiting() {
    let exact = |tag| RecvFilter { source: 1, tag, ignore: 0 };
    let wild = |tag| RecvFilter { source: UNSPEC, tag, ignore: 0xffff };
    for many in [1u64, 10_000] {
        let mut m = Matcher::<u64, u64>::default();
        for i in 0..many {
            m.put(exact(1 << 40 | i), || i);
            m.put(wild(2 << 40 | i << 16), || i);
            m.put(exact(7), || i);
        }
        for i in [0, many / 2, many - 1] {
            m.probes.set(0);
            let at = m.find_posted(1, 1 << 40 | i).expect("exact");
            assert_eq!(m.remove_posted(at, 1), Some(i));
            let at = m.find_posted(3, 2 << 40 | i << 16 | 5).expect("wild");
            assert_eq!(m.remove_posted(at, 1), Some(i));
            assert!(m.find_posted(3, 1 << 50).is_none());
            assert!(m.probes.get() <= 6, "{} probes of {many}", m.probes.get());
            m.put(exact(1 << 40 | i), || i);
            m.put(wild(2 << 40 | i << 16), || i);
        }
        for i in 0..many {
            m.keep(1, 3 << 40 | i, i);
            m.keep(2, 4 << 40 | i << 16 | 9, i);
            m.keep(9, 8, i);
        }
        for i in [0, many / 2, many - 1] {
            m.probes.set(0);
            let at = m.find_unexpected(&exact(3 << 40 | i)).expect("exact");
            assert_eq!(m.remove_unexpected(at), Some(i));
            let at = m.find_unexpected(&wild(4 << 40 | i << 16)).expect("wild");
            assert_eq!(m.remove_unexpected(at), Some(i));
            assert!(m.find_unexpected(&exact(5 << 40)).is_none());
            assert!(m.probes.get() <= 6, "{} probes of {many}", m.probes.get());
            m.keep(1, 3 << 40 | i, i);
            m.keep(2, 4 << 40 | i << 16 | 9, i);
        }
    }
}

/// When peers exchange indexes, each stored message is moved once, past no messages of others.
#[test]
fn messages_are_refiled_in_as_many_steps_as_there_are_messages() {
    const MANY: u64 = 65_536;
    let exact = |source| RecvFilter { source, tag: 7, ignore: 0 };
    let mut m = Matcher::<u64, u64>::default();
    for i in 0..MANY {
        m.keep(2 + u64::from(i >= MANY / 2), 7, i);
    }
    assert!(m.find_unexpected(&exact(9)).is_none() && m.find_unexpected(&RecvFilter { source: UNSPEC, ..exact(9) }).is_some());
    STEPS.set(0);
    m.refile(|i| Some(3 - u64::from(*i >= MANY / 2)));
    assert!(STEPS.get() <= MANY as usize + 1, "{} steps", STEPS.get());
    for i in (MANY / 2..MANY).chain(0..MANY / 2) {
        let at = m.find_unexpected(&exact(3 - u64::from(i >= MANY / 2))).unwrap();
        assert_eq!(m.remove_unexpected(at), Some(i));
    }
}

/// Only a later receive that gets a message prevents a repost. Another repost, a change of the source and a removal do
/// not.
#[test]
fn a_receive_can_be_reposted_until_a_later_one_is_filled() {
    let want = RecvFilter { source: 1, tag: 7, ignore: 0 };
    let mut m = Matcher::<u64, u64>::default();
    let first = m.put(want, || 1);
    m.put(want, || 2);
    let turn = m.position_of(first).unwrap();
    for _ in 0..2 {
        let at = m.find_posted(1, 7).unwrap();
        let item = m.remove_posted(at, 1).unwrap();
        assert!(item == 1 && m.can_repost(&turn, 1));
        m.repost(1, vec![(turn.0, want, item)]);
        let moved = m.take_posted_for(1);
        assert!(moved.iter().map(|(.., item)| item).eq(&[1, 2]));
        m.repost(1, moved);
        let third = m.put(want, || 3);
        assert_eq!(m.withdraw_posted(third), Some(3));
        assert!(m.can_repost(&turn, 1));
    }
    m.remove_posted(first, 1);
    m.record_fill(turn.0 + 1, 2);
    let from_any = (turn.0, RecvFilter { source: UNSPEC, ..want });
    assert!(m.can_repost(&turn, 1) && !m.can_repost(&from_any, 1), "a message of another sender's");
    m.record_fill(turn.0 + 1, 1);
    assert!(!m.can_repost(&turn, 1) && m.can_repost(&turn, 3));
    // A source that has got another number counts as any sender.
    m.refile(|_| None);
    assert!(!m.can_repost(&turn, 3));
}
