// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Copies on streams of the library. Neither the legacy default stream nor the whole device is ever synchronised, so a
//! copy waits for no other work.

use super::core::Core;
use super::driver::{self, Driver, pointer};
use super::list::{Slabs, is_for_kernel};
use crate::error::{Error, Result, errno};
use crate::hmem::stream::TOGETHER;
use crate::hmem::{Dir, Stream, StreamCopy};
use crate::sys::mem::page_size;
use cudarc::driver::sys::{CUcontext, CUevent, CUmemcpyAttributes, CUmemcpySrcAccessOrder, CUstream};
use std::collections::VecDeque;
use std::sync::Arc;

/// An event is recorded after every fourth copy if more copies follow, so that a long queue reports its first copies
/// before the last one is done. A query of the stream itself shows when the copies behind the last event are done.
const EVENT_EVERY: u64 = 4;
/// Bytes after which an event is recorded, whatever the number of copies.
const EVENT_BYTES: usize = 256 << 10;
/// Largest number of events in flight; beyond it, completions are reported in larger groups.
const EVENTS: usize = 16;
/// The handles of the legacy and the per-thread default stream are small numbers, not pointers.
const LAST_SPECIAL_STREAM: u64 = 2;

/// Starts one copy. The caller has made the right context current.
///
/// # Safety
/// Both sides stay valid until the stream has completed the copy.
#[inline]
unsafe fn begin(driver: &Driver, stream: CUstream, dir: Dir, to: u64, from: u64, len: usize) -> Result<()> {
    // SAFETY: the caller says that both sides stay until the stream has passed the copy.
    match unsafe { start(driver, stream, dir, to, from, len) } {
        Err(e) if e.errno == errno::EINVAL && dir != Dir::Within => {
            // SAFETY: the caller promises that both sides stay valid until the stream has completed the copy.
            unsafe { start_parts(driver, stream, dir, to, from, len, e) }
        }
        started => started,
    }
}

/// The driver call of [`begin`]. The call fails for host memory that only `start_parts` can copy.
///
/// # Safety
/// As for [`begin`].
#[inline]
unsafe fn start(driver: &Driver, stream: CUstream, dir: Dir, to: u64, from: u64, len: usize) -> Result<()> {
    match dir {
        Dir::ToDevice => {
            // SAFETY: both sides stay, as the caller of `begin` says.
            let status = unsafe { driver.cuMemcpyHtoDAsync_v2(to, from as *const _, len, stream) }?;
            driver.check("cuMemcpyHtoDAsync", status)
        }
        Dir::FromDevice => {
            // SAFETY: both sides stay, as the caller of `begin` says.
            let status = unsafe { driver.cuMemcpyDtoHAsync_v2(to as *mut _, from, len, stream) }?;
            driver.check("cuMemcpyDtoHAsync", status)
        }
        Dir::Within => {
            // In this call the driver itself finds out where each side lies, because pinned host memory counts as the
            // driver's memory too.
            // SAFETY: the caller of `begin` promises that both sides stay valid until the copy is done.
            let status = unsafe { driver.cuMemcpyAsync(to, from, len, stream) }?;
            driver.check("cuMemcpyAsync", status)
        }
    }
}

/// Starts several copies between device memory with one driver call.
///
/// # Safety
/// As for [`begin`].
unsafe fn begin_all(driver: &Driver, stream: CUstream, copies: &[StreamCopy]) -> Result<()> {
    let (mut to, mut from): (Vec<u64>, Vec<u64>) = copies.iter().map(|c| (c.to, c.from)).unzip();
    let mut lens: Vec<usize> = copies.iter().map(|c| c.len).collect();
    // SAFETY: the struct has only numbers; zeros mean that the location of the memory is not given.
    let mut how: CUmemcpyAttributes = unsafe { std::mem::zeroed() };
    how.srcAccessOrder = CUmemcpySrcAccessOrder::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    let mut first = 0;
    // SAFETY: three arrays of `copies.len()` elements, and one attribute that applies to all from index 0; the caller
    // promises that both sides of each copy stay valid.
    let status = unsafe {
        driver.cuMemcpyBatchAsync_v2(to.as_mut_ptr(), from.as_mut_ptr(), lens.as_mut_ptr(), copies.len(), &mut how, &mut first, 1, stream)
    }?;
    driver.check("cuMemcpyBatchAsync", status)
}

/// Starts a copy that the driver refused, in parts. Host memory of which only a part is pinned, or that two
/// registrations cover, has to be copied part by part.
///
/// # Safety
/// As for [`start`].
#[cold]
unsafe fn start_parts(driver: &Driver, stream: CUstream, dir: Dir, mut to: u64, mut from: u64, len: usize, refused: Error) -> Result<()> {
    let page = page_size() as u64;
    let owner = |at: u64| driver.pointer(pointer::BUFFER_ID, at).unwrap_or(0);
    let mut left = len as u64;
    while left > 0 {
        let host = if dir == Dir::ToDevice { from } else { to };
        let first = owner(host);
        let mut part = page - host % page;
        while part < left && owner(host + part) == first {
            part += page;
        }
        let part = part.min(left);
        if part == len as u64 {
            return Err(refused);
        }
        // SAFETY: this is a part of the range that the caller of `begin` keeps valid.
        unsafe { start(driver, stream, dir, to, from, part as usize)? };
        (to, from, left) = (to + part, from + part, left - part);
    }
    Ok(())
}

/// Creates a stream that does not synchronise with the default stream. The right context is current.
fn new_stream(driver: &Driver) -> Result<CUstream> {
    let mut stream: CUstream = std::ptr::null_mut();
    // SAFETY: the driver writes one pointer.
    let status = unsafe { driver.cuStreamCreate(&mut stream, driver::STREAM_NON_BLOCKING) }?;
    driver.check("cuStreamCreate", status).map(|()| stream)
}

fn new_event(driver: &Driver) -> Result<CUevent> {
    let mut event: CUevent = std::ptr::null_mut();
    // SAFETY: the driver writes one pointer.
    let status = unsafe { driver.cuEventCreate(&mut event, driver::EVENT_DISABLE_TIMING) }?;
    driver.check("cuEventCreate", status).map(|()| event)
}

impl Core {
    /// # Safety
    /// As for [`crate::hmem::Interface::copy`].
    pub unsafe fn copy(&self, device: u32, dir: Dir, to: u64, from: u64, len: usize) -> Result<()> {
        if len == 0 {
            return Ok(());
        }
        let _current = self.enter(device)?;
        // Each thread that copies needs a stream; idle ones are kept for the next copies.
        let idle = {
            let mut streams = self.streams.lock();
            streams.iter().position(|(d, _)| *d == device).map(|i| streams.swap_remove(i).1)
        };
        let stream = match idle {
            Some(stream) => stream as CUstream,
            None => new_stream(&self.driver)?,
        };
        // SAFETY: the caller promises that both sides hold `len` bytes; the stream is synchronised before this returns.
        let started = unsafe { begin(&self.driver, stream, dir, to, from, len) };
        // SAFETY: the stream is this library's, and its context is current.
        let drained = unsafe { self.driver.cuStreamSynchronize(stream) };
        self.streams.lock().push((device, stream as usize));
        started?;
        self.driver.check("cuStreamSynchronize", drained?)
    }

    pub fn stream(self: &Arc<Self>, device: u32) -> Result<Box<dyn Stream>> {
        let context = self.primary(device)?;
        let _current = self.driver.enter(context)?;
        let stream = new_stream(&self.driver)?;
        Ok(Box::new(CudaStream {
            slabs: Slabs::new(self),
            kernels: true,
            core: self.clone(),
            device,
            context,
            stream,
            marks: VecDeque::new(),
            spare: Vec::new(),
            posted: 0,
            marked: 0,
            unmarked_bytes: 0,
            done: 0,
            failed: None,
            batches: true,
        }))
    }
}

/// Copies in order on one CUDA stream.
struct CudaStream {
    core: Arc<Core>,
    context: CUcontext,
    stream: CUstream,
    /// Events in flight, oldest first, each with the number of the last copy before it.
    marks: VecDeque<(CUevent, u64)>,
    spare: Vec<CUevent>,
    posted: u64,
    /// Number of the last copy before the last event.
    marked: u64,
    /// Bytes posted after the last event.
    unmarked_bytes: usize,
    done: u64,
    failed: Option<Error>,
    /// True until the driver refuses to take several copies in one call.
    batches: bool,
    device: u32,
    /// True until a launch of the kernel for lists fails.
    kernels: bool,
    slabs: Slabs,
}

// SAFETY: the driver's handles may be used from any thread, and `&mut self` allows one thread at a time.
unsafe impl Send for CudaStream {}

impl CudaStream {
    /// Records an event behind all posted copies; the stream's context is current. If this fails, completion is
    /// reported later.
    fn mark(&mut self) {
        let driver = &self.core.driver;
        let Some(event) = self.spare.pop().or_else(|| new_event(driver).ok()) else { return };
        // SAFETY: event and stream belong to this library, and to the same context.
        if let Ok(0) = unsafe { driver.cuEventRecord(event, self.stream) } {
            self.marks.push_back((event, self.posted));
            self.marked = self.posted;
            self.unmarked_bytes = 0;
        } else {
            self.spare.push(event);
        }
    }

    /// Posts several copies, in one driver call if possible. `known`: the driver knows all of the memory of these
    /// copies.
    ///
    /// # Safety
    /// As for `post`, for each copy.
    unsafe fn post_batch(&mut self, copies: &[StreamCopy], known: bool) -> Result<u64> {
        let driver = &self.core.driver;
        let together = copies.len() > 1 && self.batches && driver.has("cuMemcpyBatchAsync_v2");
        if !together || self.failed.is_some() || !known || copies.iter().any(|c| c.len == 0) {
            for c in copies {
                // SAFETY: the caller says that both sides of each copy stay until the stream has passed it.
                unsafe { self.post(c.dir, c.to, c.from, c.len)? };
            }
        } else {
            let core = self.core.clone();
            let _current = core.driver.enter(self.context)?;
            // SAFETY: the caller says that both sides of each copy stay until the stream has passed it.
            match unsafe { begin_all(&core.driver, self.stream, copies) } {
                Ok(()) => self.posted += copies.len() as u64,
                Err(e) if matches!(e.errno, errno::EOPNOTSUPP | errno::EINVAL) => {
                    // This driver, or this kind of memory, does not support batches. The call has begun none of the
                    // copies.
                    self.batches = false;
                    // SAFETY: the caller says that both sides of each copy stay until the stream has passed it.
                    return unsafe { self.post_batch(copies, known) };
                }
                Err(e) => return Err(e),
            }
        }
        self.mark_all();
        Ok(self.posted)
    }

    /// Records an event behind all posted copies, if an event is available.
    fn mark_all(&mut self) {
        if self.marks.len() < EVENTS && self.marked < self.posted {
            let core = self.core.clone();
            if let Ok(_current) = core.driver.enter(self.context) {
                self.mark();
            }
        }
    }

    /// Ends the stream. The driver has no bounded way to stop copies, so this function waits for them. After that no
    /// copy accesses memory.
    #[cold]
    fn fail(&mut self, e: Error) -> Error {
        // SAFETY: the stream is this library's. Its own error is known already, so the result is ignored.
        let _ = unsafe { self.core.driver.cuStreamSynchronize(self.stream) };
        self.failed = Some(e.clone());
        e
    }

    fn poll(&mut self) -> Result<u64> {
        let core = self.core.clone();
        let driver = &core.driver;
        while let Some((event, mark)) = self.marks.front().copied() {
            // SAFETY: an event of ours that was recorded.
            match unsafe { driver.cuEventQuery(event) }? {
                0 => {
                    self.done = mark;
                    self.marks.pop_front();
                    self.spare.push(event);
                }
                driver::NOT_READY => return Ok(self.done),
                status => return Err(driver.error("cuEventQuery", status)),
            }
        }
        // SAFETY: our stream.
        match if self.done == self.posted { 0 } else { unsafe { driver.cuStreamQuery(self.stream) }? } {
            0 => {
                self.done = self.posted;
                self.marked = self.posted;
                self.unmarked_bytes = 0;
            }
            driver::NOT_READY => {}
            status => return Err(driver.error("cuStreamQuery", status)),
        }
        Ok(self.done)
    }
}

impl Stream for CudaStream {
    unsafe fn post(&mut self, dir: Dir, to: u64, from: u64, len: usize) -> Result<u64> {
        if let Some(e) = &self.failed {
            return Err(e.clone());
        }
        let core = self.core.clone();
        let _current = core.driver.enter(self.context)?;
        let unmarked = self.posted - self.marked.max(self.done);
        if unmarked > 0 && (unmarked >= EVENT_EVERY || self.unmarked_bytes >= EVENT_BYTES) && self.marks.len() < EVENTS {
            self.mark();
        }
        // A copy of 0 bytes is not given to the driver, but gets its number.
        if len > 0 {
            // SAFETY: both sides stay until the stream has passed the copy, as the caller says.
            unsafe { begin(&core.driver, self.stream, dir, to, from, len)? };
        }
        self.unmarked_bytes = self.unmarked_bytes.saturating_add(len);
        self.posted += 1;
        Ok(self.posted)
    }

    unsafe fn post_all(&mut self, copies: &[StreamCopy]) -> Result<u64> {
        let within = copies.iter().all(|c| c.dir == Dir::Within);
        // SAFETY: the caller says that both sides of each copy stay until the stream has passed it.
        unsafe { self.post_batch(copies, within) }
    }

    unsafe fn post_list(&mut self, copies: &[StreamCopy], reached: bool, name: u64) -> Result<u64> {
        let mut rest = copies;
        while reached && self.kernels && self.failed.is_none() && is_for_kernel(rest) {
            let core = self.core.clone();
            let _current = core.driver.enter(self.context)?;
            let numbers = (self.done()?, self.posted + 1);
            // SAFETY: the caller says that both sides of each copy stay until the stream has passed it.
            match unsafe {
                core.launch(self.device, self.stream, &mut self.slabs, rest, numbers, if rest.len() == copies.len() { name } else { 0 })
            } {
                Ok(n) => {
                    self.posted += 1;
                    rest = &rest[n..];
                }
                Err(e) => {
                    crate::log!(Info, "cuda: lists are copied without a kernel: {e}");
                    self.kernels = false;
                }
            }
            self.mark_all();
        }
        for some in rest.chunks(TOGETHER) {
            // SAFETY: the caller says that both sides of each copy stay until the stream has passed it.
            unsafe { self.post_batch(some, reached)? };
        }
        Ok(self.posted)
    }

    unsafe fn post_again(&mut self, name: u64) -> Result<Option<u64>> {
        if self.failed.is_some() || !self.kernels || !self.slabs.has(name) {
            return Ok(None);
        }
        let core = self.core.clone();
        let _current = core.driver.enter(self.context)?;
        // SAFETY: the caller says that both sides of each copy of the list stay until the stream has passed it.
        if let Err(e) = unsafe { core.relaunch(self.device, self.stream, &mut self.slabs, name, self.posted + 1) } {
            crate::log!(Info, "cuda: lists are copied without a kernel: {e}");
            self.kernels = false;
            return Ok(None);
        }
        self.posted += 1;
        if self.marks.len() < EVENTS {
            self.mark();
        }
        Ok(Some(self.posted))
    }

    fn done(&mut self) -> Result<u64> {
        if let Some(e) = &self.failed {
            return Err(e.clone());
        }
        if self.done == self.posted {
            return Ok(self.done);
        }
        self.poll().map_err(|e| self.fail(e))
    }

    fn after(&mut self, stream: u64) -> Result<()> {
        let driver = &self.core.driver;
        let theirs = stream as usize as CUstream;
        let mut context = self.context;
        let mut asked: CUcontext = std::ptr::null_mut();
        // The default stream is that of the current context, if there is one.
        // SAFETY: the driver writes one pointer; the caller promises that `stream` is a live stream.
        let status = unsafe {
            if stream <= LAST_SPECIAL_STREAM { driver.cuCtxGetCurrent(&mut asked) } else { driver.cuStreamGetCtx(theirs, &mut asked) }
        }?;
        driver.check("cuStreamGetCtx", status)?;
        if !asked.is_null() {
            context = asked;
        }
        let _current = driver.enter(context)?;
        let event = new_event(driver)?;
        // SAFETY: the event and the caller's stream belong to the context that is current.
        let ordered = unsafe { driver.cuEventRecord(event, theirs) }
            .and_then(|s| driver.check("cuEventRecord", s))
            // SAFETY: an event may be waited for in another context than its own.
            .and_then(|()| unsafe { driver.cuStreamWaitEvent(self.stream, event, 0) })
            .and_then(|s| driver.check("cuStreamWaitEvent", s));
        // SAFETY: the driver keeps the event until the wait for it is over.
        let _ = unsafe { driver.cuEventDestroy_v2(event) };
        ordered
    }
}

impl Drop for CudaStream {
    fn drop(&mut self) {
        let driver = &self.core.driver;
        let Ok(_current) = driver.enter(self.context) else { return };
        // SAFETY: the handles are this library's, and each is destroyed once, after all copies are done.
        unsafe {
            let _ = driver.cuStreamSynchronize(self.stream);
            for event in self.marks.iter().map(|(event, _)| event).chain(&self.spare) {
                let _ = driver.cuEventDestroy_v2(*event);
            }
            let _ = driver.cuStreamDestroy_v2(self.stream);
        }
        self.slabs.free();
    }
}
