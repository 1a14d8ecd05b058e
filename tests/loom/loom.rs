// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Models of two processes that access shared words at once. Loom runs every interleaving (up to a bound of preemptions) of the ring, of a
//! closing region against a copy, of claims on chunks, and of waking.
//!
//! `make check-loom` runs them and builds the crate with `--cfg loom`; otherwise this file is empty. The gate is modelled with a fence on
//! both sides. In the library the initiator's may be a compiler fence, because the owner then runs membarrier(2), which executes that fence
//! on the initiator's behalf.
#![cfg(loom)]

use gdrfab::sync::area::AREA;
use gdrfab::sync::claim::ClaimSlot;
use gdrfab::sync::consumer::Consumer;
use gdrfab::sync::gate::{self, Fences, Initiator};
use gdrfab::sync::producer::Producer;
use gdrfab::sync::ring::Header;
use gdrfab::sync::ring::model::Shared;
use gdrfab::sync::sleep;
use gdrfab::sync::wakeup::{Count, Sleepers};
use gdrfab::sys::iov::Iov;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering, fence};
use loom::thread;

fn send(p: &mut Producer<Shared>, kind: u8, words: &[u64]) -> bool {
    let header = Header { kind, words: words.len() as u8, ..Header::default() };
    if !p.room(header.lines()).unwrap() {
        return false;
    }
    p.write(header, words, &[]);
    true
}

#[test]
fn a_message_is_seen_whole_or_not_at_all() {
    loom::model(|| {
        let shared = Shared::new(4);
        let (mut p, mut c) = (Producer::new(shared.clone(), AREA), Consumer::new(shared));
        let sender = thread::spawn(move || {
            // Two lines: seven words in the first, one in the second.
            assert!(send(&mut p, 7, &[1, 2, 3, 4, 5, 6, 7, 8]));
        });
        if let Some(m) = c.front().unwrap() {
            assert_eq!((m.header.kind, m.header.lines()), (7, 2));
            for i in 0..8 {
                assert_eq!(m.word(i), i as u64 + 1);
            }
            m.finish();
        }
        sender.join().unwrap();
    });
}

#[test]
fn a_cursor_sees_short_messages_whole_and_in_order() {
    loom::model(|| {
        let shared = Shared::new(2);
        let (mut p, mut c) = (Producer::new(shared.clone(), AREA), Consumer::new(shared));
        let sender = thread::spawn(move || {
            for value in [5u64, 6] {
                assert!(p.is_open());
                let bytes = value.to_ne_bytes();
                // SAFETY: a live word.
                p.write_line(7, unsafe { Iov::of(&bytes) });
            }
            assert!(!p.is_open());
        });
        let mut cursor = c.cursor();
        for expect in [5u64, 6] {
            let mut got = 0u64;
            let Some(len) = cursor.bytes_only(7) else { break };
            assert_eq!(len, 8);
            // SAFETY: a live word.
            unsafe { cursor.copy_out((&raw mut got).cast(), len) };
            assert_eq!(got, expect);
        }
        let head = cursor.head();
        c.pass(head);
        sender.join().unwrap();
    });
}

#[test]
fn lines_given_back_are_not_overwritten_while_they_are_read() {
    loom::model(|| {
        let shared = Shared::new(2);
        let (mut p, mut c) = (Producer::new(shared.clone(), AREA), Consumer::new(shared));
        assert!(send(&mut p, 1, &[10]));
        assert!(send(&mut p, 1, &[11]));
        let sender = thread::spawn(move || send(&mut p, 1, &[12]));
        let m = c.front().unwrap().expect("sent before");
        assert_eq!(m.word(0), 10);
        m.finish();
        let m = c.front().unwrap().expect("sent before");
        assert_eq!(m.word(0), 11);
        m.finish();
        let went = sender.join().unwrap();
        let third = c.front().unwrap().map(|m| m.word(0));
        assert_eq!(third, went.then_some(12));
    });
}

#[test]
fn no_copy_runs_in_a_region_whose_close_has_returned() {
    loom::model(|| {
        let (gate_word, busy, gone) = (Arc::new(AtomicU64::new(5)), Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (g, b, f) = (gate_word.clone(), busy.clone(), gone.clone());
        let initiator = thread::spawn(move || {
            let mut me = Initiator::new(Fences::Full);
            if me.enter(&b, &g, 5, 3) {
                // Inside: the memory must still be there, at the beginning and at the end of the copy.
                assert_eq!(f.load(Ordering::Relaxed), 0);
                assert_eq!(f.load(Ordering::Relaxed), 0);
                me.leave(&b);
            }
        });
        gate::close(&gate_word);
        fence(Ordering::SeqCst);
        if let Some(mark) = gate::inside(&busy, 3) {
            while !gate::left(&busy, mark) {
                thread::yield_now();
            }
        }
        gone.store(1, Ordering::Relaxed);
        initiator.join().unwrap();
    });
}

#[test]
fn no_copy_runs_after_its_initiator_has_said_that_it_is_through() {
    loom::model(|| {
        let (gate_word, busy) = (Arc::new(AtomicU64::new(5)), Arc::new(AtomicU64::new(0)));
        let (gone, done) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (g, b, f, d) = (gate_word.clone(), busy.clone(), gone.clone(), done.clone());
        let initiator = thread::spawn(move || {
            let mut me = Initiator::new(Fences::Full);
            assert!(me.enter(&b, &g, 5, 3), "nobody closes it before");
            assert_eq!(f.load(Ordering::Relaxed), 0);
            me.leave(&b);
            // Handed over like a line of the ring.
            d.store(1, Ordering::Release);
        });
        while done.load(Ordering::Acquire) == 0 {
            thread::yield_now();
        }
        // With neither a fence nor a check of the mark.
        gate_word.store(0, Ordering::Release);
        gone.store(1, Ordering::Relaxed);
        assert!(gate::inside(&busy, 3).is_none());
        initiator.join().unwrap();
    });
}

#[test]
fn every_chunk_is_copied_by_exactly_one() {
    loom::model(|| {
        let slot = Arc::new(ClaimSlot::model());
        slot.open(3, 2);
        let theirs = slot.clone();
        let helper = thread::spawn(move || {
            let mut taken = 0;
            while theirs.claim_back(3).is_some() {
                taken += 1;
            }
            theirs.report(3, 0, taken);
            taken
        });
        let mut mine = 0;
        while slot.claim_front(3, mine, 2).unwrap() {
            mine += 1;
        }
        let theirs = helper.join().unwrap();
        assert_eq!(mine + theirs, 2);
        assert_eq!(slot.reported(3).chunks, theirs);
    });
}

#[test]
fn a_cancelled_message_is_not_fetched_and_a_fetched_one_not_cancelled() {
    loom::model(|| {
        let slot = Arc::new(ClaimSlot::model());
        slot.open(9, 1);
        let theirs = slot.clone();
        let receiver = thread::spawn(move || {
            let fetched = theirs.claim_back(9).is_some();
            if fetched {
                theirs.report(9, 0, 1);
            }
            fetched
        });
        let cancelled = slot.stop(9, 0, 1).unwrap() == 1;
        let fetched = receiver.join().unwrap();
        assert_ne!(cancelled, fetched);
    });
}

#[test]
fn a_report_about_an_ended_operation_does_not_touch_its_successor() {
    loom::model(|| {
        let slot = Arc::new(ClaimSlot::model());
        slot.open(1, 1);
        let theirs = slot.clone();
        let late = thread::spawn(move || theirs.report(1, 0, 1));
        slot.open(2, 1);
        late.join().unwrap();
        assert_eq!(slot.reported(2).chunks, 0);
    });
}

/// Each last check before sleeping consumes the packets, as it does those of the socket.
#[test]
fn nobody_sleeps_while_a_message_waits() {
    loom::model(|| {
        let (word, said, packets) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (w, s, p) = (word.clone(), said.clone(), packets.clone());
        let speaker = thread::spawn(move || {
            for message in 1..=2 {
                s.store(message, Ordering::Release);
                if sleep::must_wake(&w, Fences::Full) {
                    p.fetch_add(1, Ordering::Release);
                }
            }
        });
        let last_look = || {
            sleep::mark(&word);
            fence(Ordering::SeqCst);
            packets.swap(0, Ordering::Acquire);
            (said.load(Ordering::Acquire), sleep::is_marked(&word))
        };
        // Sleeps again after the first message, whether the packet or the check of the counter showed it.
        let (mut heard, mut may_sleep) = last_look();
        if heard == 1 || !may_sleep {
            sleep::clear(&word);
            (heard, may_sleep) = last_look();
        }
        speaker.join().unwrap();
        assert!(heard == 2 || !may_sleep || packets.load(Ordering::Acquire) > 0, "asleep with message {heard} of 2");
    });
}

/// A counter, a thread that sleeps on it, and the descriptor that wakes the thread.
#[derive(Default)]
struct Counter {
    count: Count,
    sleepers: Sleepers,
    woken: AtomicU64,
}

impl Counter {
    fn notify(&self) {
        if self.sleepers.any() {
            self.woken.fetch_add(1, Ordering::Release);
        }
    }

    fn is_woken(&self) -> bool {
        self.woken.load(Ordering::Acquire) > 0
    }
}

#[test]
fn who_waits_for_a_counter_sees_what_is_set_or_is_woken() {
    for sets in [true, false] {
        loom::model(move || {
            let counter = Arc::new(Counter::default());
            let theirs = counter.clone();
            let changer = thread::spawn(move || {
                if sets {
                    theirs.count.set(1)
                } else {
                    theirs.count.add(1)
                }
                theirs.notify();
            });
            counter.sleepers.add();
            let seen = counter.count.get();
            changer.join().unwrap();
            assert!(seen == 1 || counter.is_woken(), "asleep, and the counter has changed");
        });
    }
}

/// Reading, preparing to wait, waiting: a message before, between or after these steps is noticed.
#[test]
fn a_counter_that_was_read_is_polled_in_vain_only_while_it_stays() {
    loom::model(|| {
        let counter = Arc::new(Counter::default());
        let theirs = counter.clone();
        let changer = thread::spawn(move || {
            for n in 1..=2 {
                theirs.count.set(n);
                theirs.notify();
            }
        });
        let read = counter.count.hand_out();
        counter.sleepers.add();
        let may_wait = !counter.count.is_news();
        changer.join().unwrap();
        assert!(read == 2 || !may_wait || counter.is_woken(), "asleep with {read} of 2");
    });
}
