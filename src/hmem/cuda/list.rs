// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A kernel that copies lists of blocks with one launch, where the driver's own copies would take one call per block.
//! The kernel is `list.ptx`; the driver compiles the file for the first list, and keeps the result until the driver is
//! updated.

use super::core::Core;
use super::driver::{self, Driver, pointer};
use crate::config;
use crate::error::{Error, Result, errno};
use crate::hmem::StreamCopy;
use cudarc::driver::sys::{CUfunction, CUmodule, CUstream};
use std::ffi::c_void;
use std::ops::RangeInclusive;
use std::sync::Arc;

const PTX: &str = concat!(include_str!("list.ptx"), "\0");
const THREADS: u32 = 128;
/// Bounds of the length of a unit, the bytes that a group of threads (a thread block) copies at a time: long enough to
/// hide the time of taking a unit, and short enough for all groups to end at about the same time.
const UNIT_MIN: usize = 16 << 10;
const UNIT_MAX: usize = 64 << 10;
/// Average block size above which the driver's copies are as fast. The driver's copies also leave the GPU's processors
/// to other kernels.
const BLOCK_MAX: usize = 4 << 20;
/// Largest number of units of one launch, and the smallest number of units for which pinned memory is allocated.
const MAX_UNITS: usize = 256 << 10;
const MIN_UNITS: usize = 4 << 10;
/// Lists that a stream keeps for repeated launches, and the largest number of units of such a list.
const CACHED_LISTS: usize = 16;
const CACHED_LIST_UNITS: usize = 32 << 10;
/// Largest slab, in units, for a list that is to be kept. The slab may be larger than the list, because the number of
/// units is not known before they are written.
const CACHED_LIST_ROOM: usize = 2 * CACHED_LIST_UNITS;
/// Pinned memory of a stream, in units (32 MiB), above which idle slabs are returned to the driver.
const MAX_IDLE_UNITS: usize = (32 << 20) / size_of::<Unit>();

/// The part of a copy that one group of threads makes at a time. The kernel (`list.ptx`) reads this layout.
#[repr(C)]
#[derive(Clone, Copy)]
struct Unit {
    to: u64,
    from: u64,
    len: u64,
    _zero: u64,
}

/// Pinned memory for the units of one launch.
struct Slab {
    at: *mut Unit,
    room: usize,
    /// Number of the copy that must be done before the slab is reused.
    until: u64,
    /// Name and number of units of the list that is kept in the slab; a name of 0: none is.
    name: u64,
    units: u32,
}

/// The pinned memory of one stream.
pub(super) struct Slabs {
    core: Arc<Core>,
    all: Vec<Slab>,
}

// SAFETY: pinned memory belongs to no thread.
unsafe impl Send for Slabs {}

impl Slabs {
    /// Returns the memory of a stream whose copies are all done; the stream's context is current.
    pub fn free(&mut self) {
        (0..self.all.len()).rev().for_each(|i| self.give_back(i));
    }

    fn give_back(&mut self, i: usize) {
        let slab = self.all.swap_remove(i);
        // SAFETY: allocated by the driver, freed once, and used by no launch.
        let _ = unsafe { self.core.driver.cuMemFreeHost(slab.at.cast()) };
    }
}

/// The smallest idle slab whose size is in `room`.
fn best(all: &[Slab], room: RangeInclusive<usize>, done: u64) -> Option<usize> {
    let fits = |s: &Slab| s.is_idle(done) && room.contains(&s.room);
    all.iter().enumerate().filter(|(_, s)| fits(s)).min_by_key(|(_, s)| s.room).map(|(i, _)| i)
}

/// The largest idle slab, if all slabs together exceed `MAX_IDLE_UNITS`.
fn surplus(all: &[Slab], done: u64) -> Option<usize> {
    if all.iter().map(|s| s.room).sum::<usize>() <= MAX_IDLE_UNITS {
        return None;
    }
    all.iter().enumerate().filter(|(_, s)| s.is_idle(done)).max_by_key(|(_, s)| s.room).map(|(i, _)| i)
}

impl Slab {
    fn is_idle(&self, done: u64) -> bool {
        self.name == 0 && self.until <= done
    }
}

impl Slabs {
    pub fn new(core: &Arc<Core>) -> Slabs {
        Slabs { core: core.clone(), all: Vec::new() }
    }

    /// The index of an idle slab with room for `units` units; a new one is allocated if there is none. A list that is
    /// to be kept gets no large slab.
    fn take(&mut self, units: usize, done: u64, name: u64) -> Result<usize> {
        while let Some(i) = surplus(&self.all, done) {
            self.give_back(i);
        }
        let most = if name != 0 && units <= CACHED_LIST_ROOM { CACHED_LIST_ROOM } else { usize::MAX };
        if let Some(i) = best(&self.all, units..=most, done) {
            return Ok(i);
        }
        let room = units.next_power_of_two().max(MIN_UNITS);
        let mut at: *mut c_void = std::ptr::null_mut();
        // SAFETY: the driver writes one pointer.
        let status = unsafe { self.core.driver.cuMemHostAlloc(&mut at, room * size_of::<Unit>(), driver::HOST_ALLOC_FOR_ALL) }?;
        self.core.driver.check("cuMemHostAlloc", status)?;
        self.all.push(Slab { at: at.cast(), room, until: 0, name: 0, units: 0 });
        Ok(self.all.len() - 1)
    }

    /// Keeps the list in a slab under a name. If there are already `CACHED_LISTS` lists, the list with the smallest
    /// name, which is the oldest, is dropped.
    fn cache(&mut self, at: usize, name: u64) {
        if self.all.iter().filter(|s| s.name != 0).count() >= CACHED_LISTS
            && let Some(old) = self.all.iter_mut().filter(|s| s.name != 0).min_by_key(|s| s.name)
        {
            old.name = 0;
        }
        self.all[at].name = name;
    }

    pub fn has(&self, name: u64) -> bool {
        name != 0 && self.all.iter().any(|s| s.name == name)
    }
}

/// Largest number of thread groups of a launch; 0 if kernels are ruled out.
pub(super) fn max_groups() -> u32 {
    config::get().hmem.groups
}

/// True if this list is copied by the kernel.
pub(super) fn is_for_kernel(copies: &[StreamCopy]) -> bool {
    let total: usize = copies.iter().map(|c| c.len).sum();
    copies.len() > 1 && max_groups() > 0 && total / copies.len() <= BLOCK_MAX
}

impl Core {
    /// The kernel, loaded into the device's primary context, which is current.
    fn kernel(&self, device: u32) -> Result<CUfunction> {
        let slot = self.kernels.get(device as usize).ok_or(Error::fixed(errno::ENODEV, "cuda: unknown device"))?;
        let found = slot.get_or_init(|| load(&self.driver).inspect_err(|e| crate::log!(Info, "lists are copied without a kernel: {e}")));
        found.clone().map(|function| function as CUfunction)
    }

    /// Launches the kernel for `copies` behind the work in the stream, and keeps the list if it has a name. Returns how
    /// many of the copies the launch covers. The context is current.
    ///
    /// # Safety
    /// A kernel of the device can access both sides of each copy, and both stay valid until the stream has completed
    /// them.
    pub(super) unsafe fn launch(
        &self,
        device: u32,
        stream: CUstream,
        slabs: &mut Slabs,
        copies: &[StreamCopy],
        (done, next): (u64, u64),
        name: u64,
    ) -> Result<usize> {
        self.kernel(device)?;
        let total: usize = copies.iter().map(|c| c.len).sum();
        let unit = (total / (4 * max_groups() as usize)).clamp(UNIT_MIN, UNIT_MAX).next_multiple_of(4096);
        // Upper bound of the number of units without a division per copy: each copy has at most one unit that is not
        // full.
        let at = slabs.take((copies.len() + total / unit).min(MAX_UNITS).max(copies[0].len.div_ceil(unit)), done, name)?;
        let slab = &mut slabs.all[at];
        let (mut units, mut taken) = (0, 0);
        'copies: for c in copies {
            let (first, mut from) = (units, 0);
            while from < c.len {
                if units == slab.room {
                    units = first;
                    break 'copies;
                }
                let (to, len) = (c.to + from as u64, unit.min(c.len - from));
                // SAFETY: the index is below `room`, and no launch uses the slab.
                unsafe { slab.at.add(units).write(Unit { to, from: c.from + from as u64, len: len as u64, _zero: 0 }) };
                (units, from) = (units + 1, from + len);
            }
            taken += 1;
        }
        slab.units = units as u32;
        if units == 0 {
            return Ok(taken);
        }
        // SAFETY: the slab has parts of `copies` only, whose sides the caller keeps valid until the stream has
        // completed them.
        unsafe { self.start(device, stream, slab, next)? };
        if name != 0 && taken == copies.len() && units <= CACHED_LIST_UNITS && slab.room <= CACHED_LIST_ROOM {
            slabs.cache(at, name);
        }
        Ok(taken)
    }

    /// Launches the kernel for the list that is kept under `name`. The context is current.
    ///
    /// # Safety
    /// As for [`Core::launch`], for each copy of the list.
    pub(super) unsafe fn relaunch(&self, device: u32, stream: CUstream, slabs: &mut Slabs, name: u64, next: u64) -> Result<()> {
        let slab = slabs.all.iter_mut().find(|s| s.name == name).ok_or(Error::fixed(errno::ENOENT, "cuda: unknown list"))?;
        // SAFETY: the slab has the list that was launched under the name, and the caller promises that its sides stay
        // valid again.
        unsafe { self.start(device, stream, slab, next) }
    }

    /// # Safety
    /// As for [`Core::launch`], for each unit in the slab.
    unsafe fn start(&self, device: u32, stream: CUstream, slab: &mut Slab, next: u64) -> Result<()> {
        let function = self.kernel(device)?;
        let (mut list, mut count) = (slab.at as u64, slab.units);
        let mut parameters: [*mut c_void; 2] = [(&raw mut list).cast(), (&raw mut count).cast()];
        let groups = count.min(max_groups());
        // SAFETY: the driver copies the two parameters. The slab is not reused before `next` is done, and the caller
        // keeps the memory of its units valid.
        let status = unsafe {
            self.driver.cuLaunchKernel(function, groups, 1, 1, THREADS, 1, 1, 0, stream, parameters.as_mut_ptr(), std::ptr::null_mut())
        }?;
        self.driver.check("cuLaunchKernel", status)?;
        slab.until = next;
        Ok(())
    }

    /// True if kernels in the device's primary context can access the range at these addresses.
    pub fn reaches(&self, device: u32, addr: u64, len: u64) -> bool {
        let Ok(context) = self.primary(device) else { return false };
        let Ok(_current) = self.driver.enter(context) else { return false };
        // The driver's own copies handle memory of another context.
        let ours = |at: u64| {
            let host = matches!(self.driver.pointer(pointer::MEMORY_TYPE, at), Ok(driver::MEMORY_TYPE_HOST));
            let owner = self.driver.pointer(pointer::CONTEXT, at).unwrap_or(0);
            let own = host || owner == 0 || owner == context as u64;
            own && matches!(self.driver.pointer(pointer::DEVICE_POINTER, at), Ok(there) if there == at)
        };
        // Pinned memory may consist of several ranges with holes between them, so each range is looked at.
        let (mut at, end) = (addr, addr.saturating_add(len));
        while at < end && ours(at) && matches!(self.driver.pointer(pointer::MEMORY_TYPE, at), Ok(driver::MEMORY_TYPE_HOST)) {
            match self.detect(at) {
                Ok(Some(found)) if found.end() > at => at = found.end(),
                _ => return false,
            }
        }
        len > 0 && (at >= end || (ours(at) && ours(end - 1)))
    }
}

fn load(driver: &Driver) -> Result<usize> {
    let (mut module, mut function): (CUmodule, CUfunction) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: the text ends with a NUL; the driver writes one pointer. The module stays loaded as long as the context
    // exists.
    let status = unsafe { driver.cuModuleLoadData(&mut module, PTX.as_ptr().cast()) }?;
    driver.check("cuModuleLoadData", status)?;
    // SAFETY: the name ends with a NUL; the driver writes one pointer.
    let status = unsafe { driver.cuModuleGetFunction(&mut function, module, c"gdrfab_copy_list".as_ptr()) }?;
    driver.check("cuModuleGetFunction", status)?;
    Ok(function as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slab(room: usize, until: u64, name: u64) -> Slab {
        Slab { at: std::ptr::null_mut(), room, until, name, units: 0 }
    }

    #[test]
    fn small_lists_leave_large_slabs_and_idle_ones_go_back() {
        let all = [slab(MAX_UNITS, 0, 0), slab(MIN_UNITS, 5, 0), slab(2 * MIN_UNITS, 0, 0), slab(MIN_UNITS, 0, 7)];
        assert_eq!(best(&all, 10..=MAX_UNITS, 4), Some(2), "neither the large one, nor what is in use or kept");
        assert_eq!((best(&all, 10..=MAX_UNITS, 5), best(&all, 3 * MIN_UNITS..=MAX_UNITS, 5)), (Some(1), Some(0)));
        assert_eq!((best(&all, 3 * MIN_UNITS..=CACHED_LIST_ROOM, 5), best(&all, MAX_UNITS + 1..=usize::MAX, 5)), (None, None));
        assert_eq!(surplus(&all, 5), None);

        let mut many: Vec<Slab> = (0..8).map(|i| slab(MAX_UNITS, i, 0)).collect();
        many.push(slab(MIN_UNITS, 0, 0));
        while let Some(i) = surplus(&many, 5) {
            assert!(many[i].until <= 5);
            many.swap_remove(i);
        }
        let room: usize = many.iter().map(|s| s.room).sum();
        assert!(room <= MAX_IDLE_UNITS && many.len() >= 3, "{room}");
        let busy: Vec<Slab> = (0..8).map(|_| slab(MAX_UNITS, 9, 0)).collect();
        assert_eq!(surplus(&busy, 5), None, "what launches use stays");
    }
}
