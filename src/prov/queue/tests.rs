// SPDX-License-Identifier: Apache-2.0 OR MIT
use super::*;
use crate::sync::serial::Promise;

/// The room of a queue is its size less its entries and its reservations, however they came about.
#[test]
fn room_is_size_less_entries_and_reservations() {
    // SAFETY: only this thread uses the queues.
    let promised = Threading::Promised(unsafe { Promise::given() });
    for size in [0, 1, 3, 64, 5000] {
        let q = Queue::new(size, promised).unwrap();
        let (mut there, mut reserved) = (0usize, 0usize);
        let entry = || Completion::default();
        let failure = || Failure { error: Error::AGAIN, olen: 0, block: 0 };
        let mut random = 1u64;
        for _ in 0..200_000 {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let free = (size as isize) - (there + reserved) as isize;
            assert_eq!(q.has_room(), free > 0);
            assert_eq!(q.room_for_arrivals(), if free <= 0 && there == 0 { 1 } else { free.max(0) as usize });
            match random >> 60 {
                0..5 => {
                    assert_eq!(q.reserve(), free > 0);
                    reserved += usize::from(free > 0);
                }
                5 => {
                    // SAFETY: only this thread uses the entries.
                    let mut e = unsafe { q.promised() }.expect("no locks");
                    assert_eq!(e.reserve(), free > 0);
                    reserved += usize::from(free > 0);
                }
                6 if reserved > 0 => {
                    q.release();
                    reserved -= 1;
                }
                7 if reserved > 0 => {
                    // SAFETY: only this thread uses the entries.
                    unsafe { q.promised() }.expect("no locks").release(1);
                    reserved -= 1;
                }
                8 | 9 if reserved > 0 => {
                    q.fill(entry());
                    (reserved, there) = (reserved - 1, there + 1);
                }
                10 if reserved > 0 => {
                    q.fail(entry(), failure(), true);
                    (reserved, there) = (reserved - 1, there + 1);
                }
                11 => {
                    // A flushed receive has no reservation and adds its entry anyway.
                    q.fail(entry(), failure(), false);
                    there += 1;
                }
                12 if free > 0 => {
                    q.push(entry());
                    there += 1;
                }
                _ => match q.take((random >> 40 & 7) as usize, |_, _| {}) {
                    Taken::Some(n) => there -= n,
                    Taken::Empty => assert_eq!(there, 0),
                    Taken::ErrorFirst => {
                        assert!(q.take_error().is_some());
                        there -= 1;
                    }
                },
            }
        }
    }
}
