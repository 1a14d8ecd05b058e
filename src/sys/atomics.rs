// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Atomic operations on shared memory by the CPU's own instructions. Operations of all processes that use this module
//! on the same memory are atomic with respect to each other.

use super::iov::Iov;
use crate::error::{Code, Error, Result, errno};
use std::sync::atomic::Ordering::{AcqRel, Acquire};
use std::sync::atomic::{AtomicI8, AtomicI16, AtomicI32, AtomicI64, AtomicU8, AtomicU16, AtomicU32, AtomicU64};

/// The type of an element; the numbers are libfabric's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Datatype {
    I8,
    U8,
    I16,
    U16,
    I32,
    U32,
    I64,
    U64,
    F32,
    F64,
}

pub const DATATYPES: [Datatype; 10] = {
    use Datatype::*;
    [I8, U8, I16, U16, I32, U32, I64, U64, F32, F64]
};

impl Datatype {
    #[inline(always)]
    pub fn size(self) -> usize {
        // A table of two bits per type: the logarithm of the size.
        1 << (0xefa50_u32 >> (2 * self as u32) & 3)
    }

    #[inline(always)]
    fn is_float(self) -> bool {
        matches!(self, Datatype::F32 | Datatype::F64)
    }
}

/// The operation on an element; the numbers are libfabric's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Op {
    Min,
    Max,
    Sum,
    Prod,
    Lor,
    Land,
    Bor,
    Band,
    Lxor,
    Bxor,
    Read,
    Write,
    Cswap,
    CswapNe,
    CswapLe,
    CswapLt,
    CswapGe,
    CswapGt,
    Mswap,
}

pub const OPS: [Op; 19] = {
    use Op::*;
    [Min, Max, Sum, Prod, Lor, Land, Bor, Band, Lxor, Bxor, Read, Write, Cswap, CswapNe, CswapLe, CswapLt, CswapGe, CswapGt, Mswap]
};

/// The operands of an operation, and whether the old values are returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Form {
    /// One operand per element; the old values are not returned.
    Plain,
    /// One operand per element, none for `Read`; the old values are returned.
    Fetch,
    /// An operand and a value to compare with per element; the old values are returned.
    Compare,
}

/// An operation on some elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Atomic {
    pub op: Op,
    pub datatype: Datatype,
    pub form: Form,
    pub count: u16,
}

/// Largest total size, in bytes, of the elements of one operation.
pub const BYTES_MAX: usize = 1024;
/// Largest total size, in bytes, of the operands of one operation: one per element, or two for compare-and-swap.
pub const OPERANDS_MAX: usize = 2 * BYTES_MAX;

impl Atomic {
    /// True if libfabric defines this combination.
    #[inline(always)]
    pub fn is_valid(op: Op, datatype: Datatype, form: Form) -> bool {
        let bits = matches!(op, Op::Bor | Op::Band | Op::Bxor | Op::Mswap);
        let fits = match form {
            Form::Plain => (op as u8) < Op::Read as u8 || op == Op::Write,
            Form::Fetch => op as u8 <= Op::Write as u8,
            Form::Compare => op as u8 >= Op::Cswap as u8,
        };
        fits && !(bits && datatype.is_float())
    }

    /// Encodes the operation in one word.
    pub fn encode(self) -> u64 {
        self.op as u64 | (self.datatype as u64) << 8 | (self.form as u64) << 16 | u64::from(self.count) << 32
    }

    /// Decodes a peer's word; `None` if there is no such operation.
    pub fn decode(word: u64) -> Option<Atomic> {
        let op = *OPS.get(word as u8 as usize)?;
        let datatype = *DATATYPES.get((word >> 8) as u8 as usize)?;
        let form = *[Form::Plain, Form::Fetch, Form::Compare].get((word >> 16) as u16 as usize)?;
        let count = u16::try_from(word >> 32).ok()?;
        let atomic = Atomic { op, datatype, form, count };
        (Atomic::is_valid(op, datatype, form) && atomic.bytes() <= BYTES_MAX).then_some(atomic)
    }

    #[inline(always)]
    pub fn bytes(self) -> usize {
        usize::from(self.count) * self.datatype.size()
    }

    /// Largest number of elements of one operation.
    pub fn most(self) -> usize {
        BYTES_MAX / self.datatype.size()
    }

    /// Size of all operands in bytes.
    pub fn operands(self) -> usize {
        match (self.op, self.form) {
            (Op::Read, _) => 0,
            (_, Form::Compare) => 2 * self.bytes(),
            _ => self.bytes(),
        }
    }

    #[inline(always)]
    pub fn fetches(self) -> bool {
        self.form != Form::Plain
    }

    #[inline(always)]
    pub fn writes(self) -> bool {
        self.op != Op::Read
    }
}

macro_rules! element {
    ($name:ident, $type:ty, $cell:ty, $bits:ty, $of:expr, $to:expr, [$($op:ident => $new:expr),*]) => {
        /// Carries the operation out on one element, and returns the old value.
        ///
        /// # Safety
        /// `at` is aligned, and the element there may be changed as `op` does.
        #[inline(always)]
        unsafe fn $name(op: Op, at: *mut u8, operand: [u8; size_of::<$type>()], compare: [u8; size_of::<$type>()]) -> [u8; size_of::<$type>()] {
            // SAFETY: the caller promises that `at` is an aligned element.
            let cell = unsafe { <$cell>::from_ptr(at.cast()) };
            let (x, c) = (<$type>::from_ne_bytes(operand), <$type>::from_ne_bytes(compare));
            let (of, to): (fn($bits) -> $type, fn($type) -> $bits) = ($of, $to);
            match op {
                Op::Read => return of(cell.load(Acquire)).to_ne_bytes(),
                Op::Write => return of(cell.swap(to(x), AcqRel)).to_ne_bytes(),
                _ => {}
            }
            let mut bits = cell.load(Acquire);
            loop {
                let old = of(bits);
                let truth = |t: bool| if t { 1 as $type } else { 0 as $type };
                let zero = 0 as $type;
                let swaps = match op {
                    Op::Cswap => c == old,
                    Op::CswapNe => c != old,
                    Op::CswapLe => c <= old,
                    Op::CswapLt => c < old,
                    Op::CswapGe => c >= old,
                    Op::CswapGt => c > old,
                    _ => true,
                };
                if !swaps {
                    return old.to_ne_bytes();
                }
                let new = match op {
                    Op::Min => if x < old { x } else { old },
                    Op::Max => if x > old { x } else { old },
                    Op::Lor => truth(old != zero || x != zero),
                    Op::Land => truth(old != zero && x != zero),
                    Op::Lxor => truth((old != zero) != (x != zero)),
                    $(Op::$op => { let new: fn($type, $type, $type) -> $type = $new; new(old, x, c) },)*
                    _ => x,
                };
                match cell.compare_exchange_weak(bits, to(new), AcqRel, Acquire) {
                    Ok(_) => return old.to_ne_bytes(),
                    Err(now) => bits = now,
                }
            }
        }
    };
}

macro_rules! integer {
    ($name:ident, $type:ty, $cell:ty) => {
        element!($name, $type, $cell, $type, |v| v, |v| v, [
            Sum => |o, x, _| o.wrapping_add(x), Prod => |o, x, _| o.wrapping_mul(x), Bor => |o, x, _| o | x,
            Band => |o, x, _| o & x, Bxor => |o, x, _| o ^ x, Mswap => |o, x, c| (x & c) | (o & !c)
        ]);
    };
}

integer!(i8_at, i8, AtomicI8);
integer!(u8_at, u8, AtomicU8);
integer!(i16_at, i16, AtomicI16);
integer!(u16_at, u16, AtomicU16);
integer!(i32_at, i32, AtomicI32);
integer!(u32_at, u32, AtomicU32);
integer!(i64_at, i64, AtomicI64);
integer!(u64_at, u64, AtomicU64);
element!(f32_at, f32, AtomicU32, u32, f32::from_bits, f32::to_bits, [Sum => |o, x, _| o + x, Prod => |o, x, _| o * x]);
element!(f64_at, f64, AtomicU64, u64, f64::from_bits, f64::to_bits, [Sum => |o, x, _| o + x, Prod => |o, x, _| o * x]);

/// The bytes of element `i`, or zeros if the piece does not hold it.
#[inline(always)]
fn nth<const N: usize>(piece: Iov, i: usize) -> [u8; N] {
    match (i + 1) * N <= piece.len() {
        // SAFETY: the bytes lie inside the piece, which may be read (`Iov::new`).
        true => unsafe { piece.as_ptr().add(i * N).cast::<[u8; N]>().read_unaligned() },
        false => [0; N],
    }
}

/// Writes the bytes of element `i`, if the piece holds it.
#[inline(always)]
fn put_nth<const N: usize>(piece: Iov, i: usize, bytes: [u8; N]) {
    if (i + 1) * N <= piece.len() {
        // SAFETY: the bytes lie inside the piece, which may be written (`Iov::new`).
        unsafe { piece.as_ptr().add(i * N).cast::<[u8; N]>().write_unaligned(bytes) };
    }
}

/// The memory of an operation: the operands, the values to compare with, and the place for old values; each may be
/// empty.
#[derive(Clone, Copy, Debug)]
pub struct Operands {
    pub operand: Iov,
    pub compare: Iov,
    pub old: Iov,
}

impl Operands {
    /// Takes apart operands that lie one behind the other in `both`: the operands first, then the values to compare
    /// with.
    pub fn joined(what: Atomic, both: Iov, old: Iov) -> Operands {
        let operand = if what.writes() { both.part(0, what.bytes()) } else { Iov::EMPTY };
        Operands { operand, compare: both.part(operand.len(), both.len()), old }
    }
}

/// Adds to one element of eight bytes by a single instruction, which never has to be repeated.
///
/// # Safety
/// `at` is aligned, and the element there may be changed.
#[inline(always)]
unsafe fn add8_at(_: Op, at: *mut u8, operand: [u8; 8], _: [u8; 8]) -> [u8; 8] {
    // SAFETY: the caller promises that `at` is an aligned element.
    unsafe { AtomicU64::from_ptr(at.cast()) }.fetch_add(u64::from_ne_bytes(operand), AcqRel).to_ne_bytes()
}

/// Checks that all elements are aligned and that no element lies across two pieces, because the CPU's atomic
/// instructions need both.
pub fn check(pieces: &[Iov], datatype: Datatype) -> Result<()> {
    let size = datatype.size();
    match pieces.iter().any(|p| !p.addr().is_multiple_of(size) || !p.len().is_multiple_of(size)) {
        false => Ok(()),
        true => {
            let words = "the memory behind the remote address is not aligned to the elements, or an element crosses two of its pieces";
            Err(Error::coded(errno::EINVAL, Code::Bounds, words))
        }
    }
}

/// Carries an operation out on every element of the pieces, which are host memory.
///
/// # Safety
/// The memory is mapped, and writable if the operation writes; `check` has accepted the pieces.
#[inline(always)]
pub unsafe fn run(what: Atomic, pieces: &[Iov], with: Operands) {
    let mut i = 0;
    macro_rules! each {
        ($one:ident, $size:literal) => {
            for piece in pieces {
                for k in 0..piece.len() / $size {
                    let at = piece.as_ptr().wrapping_add(k * $size);
                    // SAFETY: this is an element of a piece, which the caller promises to be mapped.
                    let was: [u8; $size] = unsafe { $one(what.op, at, nth(with.operand, i), nth(with.compare, i)) };
                    put_nth(with.old, i, was);
                    i += 1;
                }
            }
        };
    }
    match what.datatype {
        Datatype::I64 | Datatype::U64 if what.op == Op::Sum => each!(add8_at, 8),
        Datatype::I8 => each!(i8_at, 1),
        Datatype::U8 => each!(u8_at, 1),
        Datatype::I16 => each!(i16_at, 2),
        Datatype::U16 => each!(u16_at, 2),
        Datatype::I32 => each!(i32_at, 4),
        Datatype::U32 => each!(u32_at, 4),
        Datatype::I64 => each!(i64_at, 8),
        Datatype::U64 => each!(u64_at, 8),
        Datatype::F32 => each!(f32_at, 4),
        Datatype::F64 => each!(f64_at, 8),
    }
}

/// Asks the kernel, by futex(2), whether host memory of at most two pages is mapped and readable, or with `write`
/// writable. The memory does not change. For `write` the kernel adds 0 to a word of each page (FUTEX_WAKE_OP), else it
/// compares the word (FUTEX_CMP_REQUEUE).
///
/// No thread that waits on the word is woken. The addition is requested together with an undefined comparison, so the
/// kernel returns ENOSYS before it wakes anyone; the requeue moves 0 waiters.
pub fn probe(piece: Iov, write: bool) -> Result<()> {
    const NO_COMPARISON: libc::c_int = 15 << 24;
    const ADD_NOTHING: libc::c_int = libc::FUTEX_OP_ADD << 28 | NO_COMPARISON;
    let unused = 0u32;
    let last = piece.addr() + piece.len().max(1) - 1;
    for at in [piece.addr(), last].map(|at| at & !3) {
        let unused = (&raw const unused).addr();
        let (first, how, second, value) = match write {
            true => (unused, libc::FUTEX_WAKE_OP, at, ADD_NOTHING),
            false => (at, libc::FUTEX_CMP_REQUEUE, unused, 0),
        };
        // SAFETY: the kernel checks the page; adding 0 atomically does not change the word.
        let rc = unsafe { libc::syscall(libc::SYS_futex, first, how | libc::FUTEX_PRIVATE_FLAG, 0usize, 0usize, second, value) };
        let refused = std::io::Error::last_os_error().raw_os_error().filter(|_| rc < 0);
        // EAGAIN means that the kernel has read the word, and that it has another value.
        if refused.is_some_and(|e| e != if write { libc::ENOSYS } else { libc::EAGAIN }) {
            return Err(Error::coded(
                errno::EFAULT,
                Code::Fault,
                "memory of a region is not mapped, or not with the access that the operation needs",
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::mem;
    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};

    fn once<T: Copy, const N: usize>(
        datatype: Datatype,
        op: Op,
        form: Form,
        start: [u8; N],
        operands: &[u8],
        of: fn([u8; N]) -> T,
    ) -> (T, T) {
        let mut word = 0u64;
        // SAFETY: `word` is live.
        let at = unsafe { Iov::new((&raw mut word) as usize, N) };
        at.put(&start);
        let mut old = [0u8; N];
        let what = Atomic { op, datatype, form, count: 1 };
        assert_eq!(Atomic::decode(what.encode()), Some(what));
        check(&[at], datatype).unwrap();
        // SAFETY: all pieces are live memory of this function.
        unsafe { run(what, &[at], Operands::joined(what, Iov::of(operands), Iov::of_mut(&mut old))) };
        (of(old), of(word.to_ne_bytes()[..N].try_into().unwrap()))
    }

    fn u8s(op: Op, form: Form, start: u8, x: u8, c: u8) -> (u8, u8) {
        once(Datatype::U8, op, form, [start], &[x, c], |b| b[0])
    }

    #[test]
    fn operations_are_what_libfabric_says() {
        use Form::*;
        assert_eq!((u8s(Op::Min, Fetch, 7, 3, 0), u8s(Op::Max, Fetch, 7, 3, 0)), ((7, 3), (7, 7)));
        assert_eq!((u8s(Op::Sum, Fetch, 250, 10, 0), u8s(Op::Prod, Fetch, 7, 3, 0)), ((250, 4), (7, 21)));
        assert_eq!((u8s(Op::Lor, Fetch, 0, 9, 0), u8s(Op::Land, Fetch, 7, 0, 0), u8s(Op::Lxor, Fetch, 7, 9, 0)), ((0, 1), (7, 0), (7, 0)));
        assert_eq!((u8s(Op::Bor, Fetch, 6, 3, 0), u8s(Op::Band, Fetch, 6, 3, 0), u8s(Op::Bxor, Fetch, 6, 3, 0)), ((6, 7), (6, 2), (6, 5)));
        assert_eq!((u8s(Op::Read, Fetch, 6, 3, 0), u8s(Op::Write, Fetch, 6, 3, 0)), ((6, 6), (6, 3)));
        let swapped = |op, start, c| u8s(op, Compare, start, 9, c).1 == 9;
        for (op, of) in [
            (Op::Cswap, (|c, v| c == v) as fn(u8, u8) -> bool),
            (Op::CswapNe, |c, v| c != v),
            (Op::CswapLe, |c, v| c <= v),
            (Op::CswapLt, |c, v| c < v),
            (Op::CswapGe, |c, v| c >= v),
            (Op::CswapGt, |c, v| c > v),
        ] {
            for c in [3, 4, 5] {
                assert_eq!(swapped(op, 4, c), of(c, 4), "{op:?} {c}");
            }
        }
        assert_eq!(u8s(Op::Mswap, Compare, 0b1100, 0b0011, 0b0101), (0b1100, 0b1001));
        let i32s = |op, a: i32, x: i32| once(Datatype::I32, op, Fetch, a.to_ne_bytes(), &x.to_ne_bytes(), i32::from_ne_bytes);
        assert_eq!((i32s(Op::Min, -1, 1), i32s(Op::Sum, i32::MAX, 1)), ((-1, -1), (i32::MAX, i32::MIN)));
        let f64s = |op, a: f64, x: f64| once(Datatype::F64, op, Fetch, a.to_ne_bytes(), &x.to_ne_bytes(), f64::from_ne_bytes);
        assert_eq!((f64s(Op::Sum, 1.5, 2.25), f64s(Op::Max, -1.0, 2.0)), ((1.5, 3.75), (-1.0, 2.0)));
    }

    #[test]
    fn nonsense_of_a_peer_is_refused() {
        let good = Atomic { op: Op::Sum, datatype: Datatype::U64, form: Form::Fetch, count: 128 };
        assert_eq!(Atomic::decode(good.encode()), Some(good));
        for bad in [
            Atomic { count: 129, ..good },
            Atomic { form: Form::Compare, ..good },
            Atomic { op: Op::Read, form: Form::Plain, ..good },
            Atomic { op: Op::Bor, datatype: Datatype::F64, ..good },
        ] {
            assert_eq!(Atomic::decode(bad.encode()), None, "{bad:?}");
        }
        for word in [19, 10 << 8, 3 << 16, 1 << 24, 1 << 48, u64::MAX] {
            assert_eq!(Atomic::decode(word | 1 << 32), None, "{word:#x}");
        }
    }

    #[test]
    fn who_waits_on_a_word_that_is_asked_for_sleeps_on() {
        let word = std::sync::Arc::new(AtomicU32::new(0));
        let of_waiter = word.clone();
        let at_most = libc::timespec { tv_sec: 0, tv_nsec: 300_000_000 };
        let waiter = std::thread::spawn(move || {
            let how = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
            // SAFETY: the word and the time are live.
            let rc = unsafe { libc::syscall(libc::SYS_futex, of_waiter.as_ptr(), how, 0, &raw const at_most) };
            (rc, std::io::Error::last_os_error().raw_os_error())
        });
        // SAFETY: the word is live.
        let piece = unsafe { Iov::new(word.as_ptr() as usize, 4) };
        while !waiter.is_finished() {
            for write in [false, true] {
                probe(piece, write).unwrap();
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert_eq!(waiter.join().unwrap(), (-1, Some(libc::ETIMEDOUT)));
    }

    #[test]
    fn pages_that_are_not_there_are_an_error() {
        let page = mem::page_size();
        // SAFETY: a fresh mapping, which only this test uses.
        unsafe {
            let flags = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
            let at = rustix::mm::mmap_anonymous(std::ptr::null_mut(), 2 * page, flags.0, flags.1).unwrap();
            let of = |skip: usize, len: usize| Iov::new(at as usize + skip, len);
            let both = |skip, len| [false, true].map(|write| probe(of(skip, len), write).map_err(|e| e.code));
            assert_eq!([both(0, 8), both(page - 8, 16), both(2 * page - 1, 1)], [[Ok(()); 2]; 3]);
            *at.cast::<u32>() = 7;
            assert_eq!(both(0, 8), [Ok(()); 2]);
            rustix::mm::mprotect(at.wrapping_byte_add(page), page, MprotectFlags::READ).unwrap();
            assert_eq!([both(page - 8, 8), both(page - 8, 16)], [[Ok(()); 2], [Ok(()), Err(Code::Fault)]]);
            rustix::mm::munmap(at, 2 * page).unwrap();
            assert_eq!(both(0, 8), [Err(Code::Fault); 2]);
        }
    }
}
