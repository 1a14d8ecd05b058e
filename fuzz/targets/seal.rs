// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Records that the fuzzer makes, changes, cuts and repeats, for the opener of sealed tcp streams. Opened bytes must be the sealed ones in
//! their order, and after the first record that is not, nothing is opened.
#![no_main]

use gdrfab::prov::tcp::secure::seal::{BUFFER, Cipher, CipherState, FILL, KEY, LENGTH, OUT, Opener, Sealer};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((how, mut input)) = input.split_first() else { return };
    let cipher = if how & 1 == 0 { Cipher::Aes } else { Cipher::ChaCha };
    let half = || CipherState::new(cipher, &[9; KEY]).expect("a key");
    let (mut sealer, mut opener) = (Sealer::new(half()), Opener::new(half()));
    let (mut buf, mut window, mut out) = (vec![0; BUFFER], (0, 0), vec![0; OUT]);
    let (mut sealed, mut opened, mut wire, mut bent) = (Vec::new(), 0, Vec::new(), false);
    while let Some((&[what, a, b], rest)) = input.split_first_chunk::<3>() {
        input = rest;
        let n = usize::from(u16::from_le_bytes([a, b]));
        match what % 8 {
            0..4 => {
                let len = n.clamp(1, FILL);
                out[LENGTH..LENGTH + len].fill(what);
                sealer.seal(&mut out, len).expect("sealed");
                wire.extend_from_slice(sealer.rest(&out));
                sealer.left(OUT);
                sealed.extend(std::iter::repeat_n(what, len));
            }
            4 if !wire.is_empty() => {
                let at = n % wire.len();
                wire[at] ^= what | 1;
                bent = true;
            }
            5 => {
                wire.truncate(n);
                bent = true;
            }
            6 => {
                wire.extend_from_within(..n.min(wire.len()));
                bent = true;
            }
            _ => {
                wire.extend_from_slice(&rest[..n.min(rest.len())]);
                bent = true;
            }
        }
        // Usually several records collect on the wire before any is opened, so that a change reaches more than the last.
        if b & 3 != 0 && rest.len() >= 3 && wire.len() < BUFFER {
            continue;
        }
        let mut from = 0;
        loop {
            match opener.open(&mut buf, window) {
                Ok(Some((begin, end))) => {
                    // All but the last few bytes are taken at once.
                    let keep = usize::from(b) % 200;
                    let until = end.saturating_sub(keep).max(begin);
                    assert_eq!(buf[begin..until], sealed[opened..opened + until - begin]);
                    opened += until - begin;
                    window = (until, end);
                    continue;
                }
                Ok(None) if from == wire.len() => break,
                Ok(None) => {}
                Err(_) => {
                    assert!(bent, "an untouched record did not open");
                    assert!(opener.open(&mut buf, (0, 0)).is_err());
                    return;
                }
            }
            let (room, moved) = opener.room(&mut buf, window);
            window = moved;
            let n = room.len().min(wire.len() - from);
            assert!(n > 0, "no room");
            room[..n].copy_from_slice(&wire[from..from + n]);
            opener.came(n);
            from += n;
        }
        wire.clear();
    }
});
