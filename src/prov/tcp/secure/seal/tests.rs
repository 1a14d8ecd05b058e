// SPDX-License-Identifier: Apache-2.0 OR MIT
use crate::prov::tcp::secure::seal::*;

const KEY_OF: [u8; KEY] = [7; KEY];

fn pair(cipher: Cipher) -> (Sealer, Opener) {
    (Sealer::new(CipherState::new(cipher, &KEY_OF).unwrap()), Opener::new(CipherState::new(cipher, &KEY_OF).unwrap()))
}

/// One record as it goes over the wire.
fn record(sealer: &mut Sealer, plain: &[u8]) -> Vec<u8> {
    let mut buf = [&[0; LENGTH], plain, &[0; TAG]].concat();
    sealer.seal(&mut buf, plain.len()).unwrap();
    let wire = sealer.rest(&buf).to_vec();
    sealer.left(wire.len());
    wire
}

fn text(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| ((i + seed) * 31 % 251) as u8).collect()
}

/// A reader of records that leaves `keep` opened bytes before it asks for more.
struct Reader {
    opener: Opener,
    buf: Vec<u8>,
    window: Window,
    keep: usize,
    taken: Vec<u8>,
}

impl Reader {
    fn new(opener: Opener, keep: usize) -> Reader {
        Reader { opener, buf: vec![0; BUFFER], window: (0, 0), keep, taken: Vec::new() }
    }

    fn take(&mut self, keep: usize) {
        let (from, to) = self.window;
        let until = to.saturating_sub(keep).max(from);
        self.taken.extend_from_slice(&self.buf[from..until]);
        self.window = if until == to { (0, 0) } else { (until, to) };
    }

    /// Gives the reader bytes in runs of `run`, and opens every complete record.
    fn feed(&mut self, mut wire: &[u8], run: usize) -> Result<()> {
        loop {
            while let Some(window) = self.opener.open(&mut self.buf, self.window)? {
                self.window = window;
                self.take(self.keep);
            }
            if wire.is_empty() {
                return Ok(());
            }
            let (room, window) = self.opener.room(&mut self.buf, self.window);
            let n = room.len().min(wire.len()).min(run);
            assert!(n > 0);
            room[..n].copy_from_slice(&wire[..n]);
            self.window = window;
            self.opener.came(n);
            wire = &wire[n..];
        }
    }
}

const CIPHERS: [Cipher; 2] = [Cipher::ChaCha, Cipher::Aes];

#[test]
fn records_open_however_they_are_cut() {
    for cipher in CIPHERS {
        for (run, keep) in [(usize::MAX, 0), (usize::MAX, 3), (1000, 200), (65_537, 15), (7, 0)] {
            let (mut sealer, opener) = pair(cipher);
            let mut reader = Reader::new(opener, keep);
            let (mut wire, mut all) = (Vec::new(), Vec::new());
            let sizes: &[usize] =
                if run == 7 { &[1, 2, 300] } else { &[1, 2, 15, 16, 17, 255, 4096, 65_503, FILL, 1, FILL, FILL, 64, FILL, 3] };
            for (seed, len) in sizes.iter().enumerate() {
                let plain = text(*len, seed);
                wire.extend(record(&mut sealer, &plain));
                all.extend(plain);
            }
            reader.feed(&wire, run).unwrap();
            reader.take(0);
            assert!(reader.taken == all, "{cipher:?} {run} {keep}");
            assert!(!reader.opener.is_amid() && !reader.opener.holds_record(&reader.buf));
        }
    }
}

#[test]
fn every_length_opens() {
    let (mut sealer, opener) = pair(Cipher::Aes);
    let mut reader = Reader::new(opener, 0);
    for len in (1..300).chain((300..FILL).step_by(2_999)).chain([FILL - 1, FILL]) {
        let plain = text(len, len);
        let wire = record(&mut sealer, &plain);
        assert_eq!(wire.len(), LENGTH + len + TAG);
        reader.taken.clear();
        reader.feed(&wire, usize::MAX).unwrap();
        assert!(reader.taken == plain, "{len}");
    }
    // A sender never makes a record this long, but a reader accepts it.
    let (half, mut longest) = (CipherState::new(Cipher::Aes, &KEY_OF).unwrap(), vec![5; PLAIN_MAX + TAG]);
    CipherState { number: reader.opener.half.number, ..half }.seal(&mut longest).unwrap();
    reader.taken.clear();
    reader.feed(&[&(RECORD_MAX as u16).to_le_bytes(), &longest[..]].concat(), usize::MAX).unwrap();
    assert_eq!(reader.taken, vec![5; PLAIN_MAX]);
}

#[test]
fn nothing_is_sealed_before_the_last_record_has_left() {
    let (mut sealer, _) = pair(Cipher::Aes);
    let mut buf = vec![0; OUT];
    assert!(sealer.is_out() && sealer.rest(&buf).is_empty());
    for (len, room) in [(0, OUT), (FILL + 1, OUT), (9, LENGTH + 8 + TAG), (1, 0)] {
        assert!(sealer.seal(&mut buf[..room], len).is_err() && sealer.is_out(), "{len} {room}");
    }
    sealer.seal(&mut buf, 8).unwrap();
    sealer.left(25);
    assert_eq!((sealer.rest(&buf).len(), sealer.is_out()), (1, false));
    assert!(sealer.seal(&mut buf, 8).is_err());
    sealer.left(1);
    assert!(sealer.is_out() && sealer.seal(&mut buf, FILL).is_ok());
}

#[test]
fn a_changed_bit_ends_it_for_good() {
    for cipher in CIPHERS {
        let wire = record(&mut pair(cipher).0, &text(40, 1));
        for at in 0..8 * wire.len() {
            let (mut sealer, opener) = pair(cipher);
            let mut reader = Reader::new(opener, 0);
            let mut bad = wire.clone();
            bad[at / 8] ^= 1 << (at % 8);
            record(&mut sealer, &text(40, 1));
            // If the length field was made larger, the following bytes fill the record up.
            let rest: Vec<u8> = (0..3).flat_map(|_| record(&mut sealer, &text(FILL, 2))).collect();
            bad.extend(&rest);
            let e = reader.feed(&bad, usize::MAX).unwrap_err();
            assert!(e.errno == errno::EPROTO && e.code == Code::PeerBroke && e.words.contains("seal"), "{at}: {e}");
            assert!(reader.taken.is_empty());
            assert!(reader.opener.holds_record(&reader.buf), "its end is to be found again");
            assert!(reader.feed(&wire, usize::MAX).is_err() && reader.taken.is_empty());
        }
    }
}

#[test]
fn half_a_record_gives_nothing() {
    let wire = record(&mut pair(Cipher::ChaCha).0, &text(100, 1));
    for len in 0..wire.len() {
        let mut reader = Reader::new(pair(Cipher::ChaCha).1, 0);
        reader.feed(&wire[..len], usize::MAX).unwrap();
        assert!(reader.taken.is_empty() && reader.window == (0, 0));
        assert_eq!(reader.opener.is_amid(), len > 0);
        assert!(!reader.opener.holds_record(&reader.buf));
        reader.feed(&wire[len..], usize::MAX).unwrap();
        assert_eq!(reader.taken, text(100, 1));
    }
}

#[test]
fn a_record_opens_once_and_in_its_turn() {
    for cipher in CIPHERS {
        let mut sealer = pair(cipher).0;
        let wires: Vec<Vec<u8>> = (0..3).map(|i| record(&mut sealer, &text(50, i))).collect();
        for order in [&[0, 0][..], &[1], &[0, 2], &[0, 1, 1], &[0, 1, 0], &[2, 1, 0]] {
            let mut reader = Reader::new(pair(cipher).1, 0);
            let (last, good) = order.split_last().unwrap();
            let results: Vec<bool> = order.iter().map(|i| reader.feed(&wires[*i], usize::MAX).is_ok()).collect();
            assert!(!results.last().unwrap(), "{good:?} {last}");
            let in_order: Vec<u8> = order.iter().enumerate().take_while(|(at, i)| at == *i).flat_map(|(_, i)| text(50, *i)).collect();
            assert_eq!(reader.taken, in_order);
        }
        // The other direction's key, and the other cipher's.
        let other = CipherState::new(cipher, &[8; KEY]).unwrap();
        assert!(Reader::new(Opener::new(other), 0).feed(&wires[0], usize::MAX).is_err());
        let other = CIPHERS[usize::from(cipher == Cipher::ChaCha)];
        assert!(Reader::new(pair(other).1, 0).feed(&wires[0], usize::MAX).is_err());
    }
}

#[test]
fn a_record_without_anything_in_it_is_none() {
    for len in 0..=TAG as u16 {
        let mut reader = Reader::new(pair(Cipher::Aes).1, 0);
        let wire = [&len.to_le_bytes()[..], &[0; 64]].concat();
        assert!(reader.feed(&wire, usize::MAX).is_err_and(|e| e.code == Code::PeerBroke), "{len}");
    }
}

#[test]
fn keys_change_on_both_sides_at_once() {
    for cipher in CIPHERS {
        let (mut sealer, opener) = pair(cipher);
        let mut reader = Reader::new(opener, 0);
        for number in 0..2 * REKEY + 10 {
            let plain = number.to_le_bytes();
            reader.taken.clear();
            reader.feed(&record(&mut sealer, &plain), usize::MAX).unwrap();
            assert_eq!(reader.taken, plain);
        }
        // Without the change of keys the record does not open.
        let mut still = CipherState::new(cipher, &KEY_OF).unwrap();
        still.number = REKEY;
        let mut fresh = CipherState::new(cipher, &KEY_OF).unwrap();
        fresh.number = REKEY;
        let mut wire = vec![1; 8 + TAG];
        fresh.seal(&mut wire).unwrap();
        let nonce = cipher.nonce(REKEY);
        assert!(still.key.open_in_place(nonce, Aad::empty(), &mut wire.clone()).is_err());
        still.open(&mut wire).unwrap();
        assert_eq!(wire[..8], [1; 8]);
    }
}
