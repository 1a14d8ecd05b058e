// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What every vendor's dma-buf has in common: page congruence and the size that the kernel tells.

use crate::error::{Error, Result, errno};
use crate::sys::mem;

/// `[addr, addr+len)` widened to host pages: where it begins, its length, and the asked range's offset.
pub fn widen(addr: u64, len: u64) -> Result<(u64, u64, u64)> {
    let page = mem::page_size() as u64;
    let start = addr & !(page - 1);
    let end = addr.checked_add(len).and_then(|end| end.checked_next_multiple_of(page));
    match end {
        Some(end) if len > 0 => Ok((start, end - start, addr - start)),
        _ => Err(Error::new(errno::EINVAL, format!("len: {len} bytes from {addr:#x} are no range of memory"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_grow_to_pages() {
        let page = mem::page_size() as u64;
        assert_eq!(widen(page * 3 + 5, 10).unwrap(), (page * 3, page, 5));
        assert_eq!(widen(page * 3, page + 1).unwrap(), (page * 3, page * 2, 0));
        assert!(widen(5, 0).is_err());
        assert!(widen(u64::MAX - 5, 10).is_err());
    }
}
