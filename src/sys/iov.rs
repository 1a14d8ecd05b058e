// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A piece of memory as a value. Making a piece is unsafe, and promises that the library may access the memory; using a
//! piece needs no further promise.

/// A piece of memory: a buffer of the C caller until its operation is over, memory of a region until that is closed, or
/// bytes of the library that live as long as the piece is used. The type has the layout of `struct iovec`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Iov {
    addr: usize,
    len: usize,
}

const _: () = assert!(size_of::<Iov>() == size_of::<libc::iovec>() && align_of::<Iov>() == align_of::<libc::iovec>());

impl Iov {
    /// No memory.
    pub const EMPTY: Iov = Iov { addr: 0, len: 0 };

    /// # Safety
    /// Until the operation with the piece is over, or the region closed, the library may read the memory, and write it
    /// if the operation does. A buffer stays mapped that long. The program may unmap a region's pages, so the kernel
    /// copies from and to them (`UserCopy`). An address of a device or of another process is only passed to drivers.
    #[inline(always)]
    pub const unsafe fn new(addr: usize, len: usize) -> Iov {
        Iov { addr, len }
    }

    /// A piece of the library's own bytes, for reading.
    ///
    /// # Safety
    /// The bytes stay where they are as long as the piece is used. The piece is only read.
    #[inline]
    pub unsafe fn of(bytes: &[u8]) -> Iov {
        Iov { addr: bytes.as_ptr() as usize, len: bytes.len() }
    }

    /// Like `of`, but the bytes may be written as well.
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

    /// True if the length is not 0 but the address is NULL.
    #[inline(always)]
    pub const fn is_missing(&self) -> bool {
        self.addr == 0 && self.len != 0
    }

    #[inline(always)]
    pub const fn as_ptr(&self) -> *mut u8 {
        self.addr as *mut u8
    }

    /// Writes the bytes to the beginning of the piece, as far as they fit. Host memory only.
    #[inline]
    pub fn put(&self, bytes: &[u8]) {
        // SAFETY: the memory may be written (`Iov::new`). No slice of it is made, because the program may access it
        // meanwhile.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.as_ptr(), bytes.len().min(self.len)) };
    }

    /// Appends the bytes of the piece to a vector. Host memory only.
    #[inline]
    pub fn append_to(&self, bytes: &mut Vec<u8>) {
        if self.len > 0 {
            // SAFETY: the memory may be read (`Iov::new`). A write at the same time only makes the appended bytes
            // unspecified.
            bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len) });
        }
    }

    /// Up to `len` bytes from byte `from` on, as far as the piece reaches.
    #[inline]
    pub fn part(&self, from: usize, len: usize) -> Iov {
        let from = from.min(self.len);
        Iov { addr: self.addr.wrapping_add(from), len: len.min(self.len - from) }
    }
}
