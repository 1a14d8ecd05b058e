// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Error words of operations that the peer refused: the peer sends a code, and this side adds the address, length and key that were
//! asked for.

use crate::error::{Code, Error};
use crate::prov::bind::Ending;
use crate::prov::flags;

/// The address and key at which an operation begins in the peer's memory; zeros for a list, which has many such places.
#[derive(Clone, Copy, Debug, Default)]
pub struct RemoteAddr {
    pub addr: u64,
    pub key: u64,
}

/// Adds the range that was asked for to the error that the peer reported. A list has no single range, so its error
/// stays as it is.
#[cold]
pub fn refused(why: Error, end: &Ending, at: RemoteAddr) -> Error {
    if end.part {
        return why;
    }
    let RemoteAddr { addr, key } = at;
    let range = format!("[{addr:#x}, +{}) of the peer's region {key:#x}", end.len);
    let words = match why.code {
        Code::Key => format!("{range}: the peer has no region with this key: it is stale, foreign, or closed"),
        Code::Bounds => format!("{range}: the range lies outside the region"),
        Code::Access => {
            let right = match end.kind & (flags::READ | flags::ATOMIC) {
                0 => "GDRFAB_REMOTE_WRITE",
                flags::READ => "GDRFAB_REMOTE_READ",
                _ => "the access rights that an atomic operation needs",
            };
            format!("{range}: the region was not registered with {right}")
        }
        _ => format!("{range}: {}", why.words),
    };
    Error { words: words.into(), ..why }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_the_range() {
        let end = Ending { len: 64, kind: flags::WRITE, ..Ending::default() };
        for code in [Code::Key, Code::Bounds, Code::Access, Code::Path, Code::Fault] {
            let e = refused(Error::reported(code), &end, RemoteAddr { addr: 0x1000, key: 0x77 });
            assert_eq!(e.code, code);
            assert!(["0x1000", "+64", "0x77"].iter().all(|part| e.words.contains(part)), "{e}");
        }
        let list = Ending { part: true, ..end };
        assert_eq!(refused(Error::reported(Code::Key), &list, RemoteAddr::default()).words, Error::reported(Code::Key).words);
    }
}
