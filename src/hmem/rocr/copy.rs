// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Copies by the HSA runtime, either blocking or ordered by signals.
//!
//! Agents access memory of a pool at its own address, and locked host memory at the address that the lock returned. The
//! runtime locks any other host memory for the duration of one blocking copy. This file does not lock memory for each
//! copy, because an unlock names an address without a length, and could undo another user's lock.

use super::super::chain::{CopyArgs, Engine, Started};
use super::super::{Dir, MemoryKind};
use super::driver::{Agent, POINTER_HSA, POINTER_LOCKED, SIGNAL_CONDITION_LT, Signal, WAIT_STATE_BLOCKED, call};
use super::runtime::Runtime;
use crate::error::{Error, Result, errno};
use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// One side of a copy, as agents see it.
struct Side {
    agent: Agent,
    at: u64,
    /// The GPU that owns the memory; `None`: host memory.
    device: Option<u32>,
    /// True if every agent can access the memory.
    open: bool,
}

impl Runtime {
    /// The range `[addr, addr+len)` as a side of a copy. `None`: no agent can access the range unless it is locked
    /// first.
    fn side(&self, addr: u64, len: u64, is_host: bool) -> Result<Option<Side>> {
        if !is_host
            && let Some(a) = self.detect(addr)?
            && a.kind != MemoryKind::Pinned
        {
            let agent = self.gpu(a.device)?.agent;
            let whole = a.end() >= addr.saturating_add(len);
            return Ok(whole.then_some(Side { agent, at: addr, device: Some(a.device), open: a.kind == MemoryKind::Imported }));
        }
        let info = self.pointer_info(addr)?;
        if info.kind != POINTER_LOCKED && info.kind != POINTER_HSA {
            return Ok(None);
        }
        let bases = [info.host_base, info.agent_base];
        let Some(base) = bases.into_iter().find(|b| addr >= *b && addr - b < info.len as u64) else { return Ok(None) };
        let offset = addr - base;
        let whole = len <= info.len as u64 - offset && info.agent_base != 0;
        Ok(whole.then_some(Side { agent: self.cpu, at: info.agent_base + offset, device: None, open: true }))
    }

    /// True if the GPUs of both sides can access both sides, which a copy by one engine needs.
    fn mutual(&self, a: &Side, b: &Side) -> bool {
        match (a.device, b.device) {
            (Some(x), Some(y)) if x != y => (a.open || self.reaches(b.agent, a.at)) && (b.open || self.reaches(a.agent, b.at)),
            // Locked host memory is accessible to every agent, unless someone else locked it for some agents only.
            (Some(_), None) => self.reaches(a.agent, b.at),
            (None, Some(_)) => self.reaches(b.agent, a.at),
            _ => true,
        }
    }

    /// Both sides, if an engine can copy between them.
    fn sides(&self, copy: &CopyArgs) -> Result<Option<(Side, Side)>> {
        let len = copy.len as u64;
        let Some(to) = self.side(copy.to, len, copy.dir == Dir::FromDevice)? else { return Ok(None) };
        let Some(from) = self.side(copy.from, len, copy.dir == Dir::ToDevice)? else { return Ok(None) };
        Ok(self.mutual(&to, &from).then_some((to, from)))
    }

    /// The runtime's blocking copy, for any two addresses; it goes through host memory if necessary.
    ///
    /// # Safety
    /// Both sides are valid for `len` bytes.
    pub unsafe fn copy_blocking(&self, copy: CopyArgs) -> Result<()> {
        // SAFETY: both sides hold `len` bytes, as the caller says.
        unsafe { call!(self.hsa, hsa_memory_copy(copy.to as *mut c_void, copy.from as *const c_void, copy.len)) }
    }

    /// Copies and waits.
    ///
    /// # Safety
    /// Both sides are valid for `len` bytes.
    pub unsafe fn copy_now(self: &Arc<Self>, copy: CopyArgs) -> Result<()> {
        // Between two GPUs the blocking copy goes through host memory, while an engine may copy directly.
        if copy.dir == Dir::Within && self.sides(&copy)?.is_some_and(|(to, from)| to.device != from.device) {
            let mut engine = Signals { runtime: self.clone() };
            let mark = engine.new_mark()?;
            // SAFETY: the caller promises that both sides hold `len` bytes; the wait below ends after the copy.
            let started = unsafe { engine.start(copy, None, mark) };
            let result = started.and_then(|started| {
                while started == Started::Flying && !engine.wait(mark, Duration::from_secs(1)) {}
                if started == Started::Flying { engine.finished(mark).map(|_| ()) } else { Ok(()) }
            });
            engine.destroy(mark);
            return result;
        }
        // SAFETY: both sides hold `len` bytes, as the caller says.
        unsafe { self.copy_blocking(copy) }
    }
}

/// Copies by engines, each with a signal: 1 while the copy runs, 0 when it is done, negative when it failed.
pub struct Signals {
    pub runtime: Arc<Runtime>,
}

impl Engine for Signals {
    type Mark = Signal;

    fn new_mark(&mut self) -> Result<Signal> {
        let mut signal = Signal::default();
        // SAFETY: `signal` is live; no consumers means that any thread may wait.
        unsafe { call!(self.runtime.hsa, hsa_signal_create(1, 0, ptr::null(), &mut signal))? };
        Ok(signal)
    }

    fn reset(&mut self, mark: Signal) -> Result<()> {
        // SAFETY: a signal of `new_mark`.
        unsafe { self.runtime.hsa.hsa_signal_store_screlease(mark, 1) }
    }

    unsafe fn start(&mut self, copy: CopyArgs, after: Option<Signal>, mark: Signal) -> Result<Started> {
        let Some((to, from)) = self.runtime.sides(&copy)? else {
            if let Some(after) = after {
                while !self.wait(after, Duration::from_secs(1)) {}
                self.finished(after)?;
            }
            // SAFETY: both sides hold `len` bytes until the copy is over, as the caller says.
            return unsafe { self.runtime.copy_blocking(copy) }.map(|()| Started::Done);
        };
        let (to_ptr, from_ptr) = (to.at as *mut c_void, from.at as *const c_void);
        let (count, deps) = match &after {
            Some(after) => (1, ptr::from_ref(after)),
            None => (0, ptr::null()),
        };
        // SAFETY: both sides stay until the copy is over, as the caller says; both signals are of `new_mark`.
        unsafe {
            call!(self.runtime.hsa, hsa_amd_memory_async_copy(to_ptr, to.agent, from_ptr, from.agent, copy.len, count, deps, mark))?;
        }
        Ok(Started::Flying)
    }

    fn finished(&mut self, mark: Signal) -> Result<bool> {
        // SAFETY: a signal of `new_mark`.
        match unsafe { self.runtime.hsa.hsa_signal_load_scacquire(mark)? } {
            ..0 => Err(Error::new(errno::EIO, "hsa_amd_memory_async_copy: the copy failed after it was started")),
            value => Ok(value == 0),
        }
    }

    fn wait(&mut self, mark: Signal, limit: Duration) -> bool {
        let begin = Instant::now();
        loop {
            // The timeout hint is in ticks of an unknown clock and may be ignored, so the wait is short and repeated.
            // SAFETY: a signal of `new_mark`.
            let value = unsafe { self.runtime.hsa.hsa_signal_wait_scacquire(mark, SIGNAL_CONDITION_LT, 1, 1_000_000, WAIT_STATE_BLOCKED) };
            match value {
                Ok(1..) if begin.elapsed() < limit => {}
                Ok(value) => return value < 1,
                // A runtime without this function is polled until the copy is done.
                Err(_) => match self.finished(mark) {
                    Ok(false) if begin.elapsed() < limit => std::thread::yield_now(),
                    Ok(done) => return done,
                    Err(_) => return true,
                },
            }
        }
    }

    fn release_waiters(&mut self, mark: Signal) {
        // Copies that wait for this signal wait for 0, which a failed copy never stores. The waiting copies may run
        // now, because nobody uses their results.
        // SAFETY: a signal of `new_mark`.
        let _ = unsafe { self.runtime.hsa.hsa_signal_store_screlease(mark, 0) };
    }

    fn destroy(&mut self, mark: Signal) {
        // SAFETY: a signal of `new_mark`, and no copy uses it any more.
        let _ = unsafe { self.runtime.hsa.hsa_signal_destroy(mark) };
    }
}
