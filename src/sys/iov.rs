// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory that somebody answers for, as a value: who has one may touch the memory, and needs no promise besides.

/// A piece of memory: a buffer of the C caller's until its operation is over, memory of a region until that is closed, or
/// bytes of our own that are kept beside it. Laid out as `struct iovec`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Iov {
    addr: usize,
    len: usize,
}

const _: () = assert!(size_of::<Iov>() == size_of::<libc::iovec>() && align_of::<Iov>() == align_of::<libc::iovec>());

impl Iov {
    /// No memory at all.
    pub const EMPTY: Iov = Iov { addr: 0, len: 0 };

    /// # Safety
    /// Until the operation with the piece is over, or the region closed, the library may read the memory, and write it if the
    /// operation does. A buffer is there as long; a region's pages may go, so the kernel copies those (`UserCopy`); and what a
    /// device or another process has at such an address is named to drivers alone.
    #[inline(always)]
    pub const unsafe fn new(addr: usize, len: usize) -> Iov {
        Iov { addr, len }
    }

    /// Bytes of our own.
    ///
    /// # Safety
    /// They stay where they are as long as the piece is used, which only reads.
    #[inline]
    pub unsafe fn of(bytes: &[u8]) -> Iov {
        Iov { addr: bytes.as_ptr() as usize, len: bytes.len() }
    }

    /// As `of`, and the bytes are written as well.
    ///
    /// # Safety
    /// As for `of`.
    #[inline]
    pub unsafe fn of_mut(bytes: &mut [u8]) -> Iov {
        Iov { addr: bytes.as_mut_ptr() as usize, len: bytes.len() }
    }

    #[inline(always)]
    pub const fn addr(&self) -> usize {
        self.addr
    }

    #[inline(always)]
    pub const fn len(&self) -> usize {
        self.len
    }

    #[inline(always)]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether there should be bytes, and is no memory.
    #[inline(always)]
    pub const fn is_missing(&self) -> bool {
        self.addr == 0 && self.len != 0
    }

    #[inline(always)]
    pub const fn as_ptr(&self) -> *mut u8 {
        self.addr as *mut u8
    }

    /// Writes the bytes to the beginning of host memory, as far as it goes.
    #[inline]
    pub fn put(&self, bytes: &[u8]) {
        // SAFETY: `new`: the memory may be written. No slice of it is made, as the program may look at it meanwhile.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.as_ptr(), bytes.len().min(self.len)) };
    }

    /// Appends the bytes of host memory.
    #[inline]
    pub fn append_to(&self, bytes: &mut Vec<u8>) {
        if self.len > 0 {
            // SAFETY: `new`: the memory may be read, and nobody writes it meanwhile who would mind.
            bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len) });
        }
    }

    /// Up to `len` bytes from byte `from` on, as far as the piece goes.
    #[inline]
    pub fn part(&self, from: usize, len: usize) -> Iov {
        let from = from.min(self.len);
        Iov { addr: self.addr.wrapping_add(from), len: len.min(self.len - from) }
    }
}
