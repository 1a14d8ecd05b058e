// SPDX-License-Identifier: Apache-2.0 OR MIT
//! CUDA contexts. A device's primary context is retained when first needed and made current around each driver call;
//! then the caller's context is current again, also after an error.

use super::core::Core;
use super::driver::Driver;
use crate::error::{Error, Result, errno};
use cudarc::driver::sys::CUcontext;
use std::sync::atomic::Ordering;

/// Keeps a context current until dropped. Not `Send`, because the current context belongs to a thread.
pub struct Current<'a> {
    /// The driver to pop the context with; `None` if nothing was pushed.
    driver: Option<&'a Driver>,
    _thread: std::marker::PhantomData<*const ()>,
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        if let Some(driver) = self.driver {
            let mut popped: CUcontext = std::ptr::null_mut();
            // SAFETY: pops what `enter` pushed on this thread.
            let status = unsafe { driver.cuCtxPopCurrent_v2(&mut popped) };
            if !matches!(status, Ok(0)) {
                crate::log!(Warn, "cuda: cuCtxPopCurrent: {status:?}");
            }
        }
    }
}

impl Driver {
    /// Makes `context` current. If the context is current already, this function only queries the driver.
    #[inline]
    pub(super) fn enter(&self, context: CUcontext) -> Result<Current<'_>> {
        let mut now: CUcontext = std::ptr::null_mut();
        // SAFETY: the driver writes one pointer.
        let status = unsafe { self.cuCtxGetCurrent(&mut now) }?;
        let pushed = status != 0 || now != context;
        if pushed {
            // SAFETY: `context` is a primary context that this library retains, or belongs to live memory or to a live
            // stream of the caller.
            let status = unsafe { self.cuCtxPushCurrent_v2(context) }?;
            self.check("cuCtxPushCurrent", status)?;
        }
        Ok(Current { driver: pushed.then_some(self), _thread: std::marker::PhantomData })
    }
}

impl Core {
    /// The device's primary context, retained at first use.
    pub fn primary(&self, device: u32) -> Result<CUcontext> {
        let slot = self.primaries.get(device as usize).ok_or_else(|| {
            Error::new(errno::ENODEV, format!("cuda: device {device} does not exist; this process has {}", self.facts.len()))
        })?;
        let mut context = slot.context.load(Ordering::Acquire) as CUcontext;
        if context.is_null() {
            let _one = slot.retaining.lock();
            context = slot.context.load(Ordering::Acquire) as CUcontext;
            if context.is_null() {
                // SAFETY: the driver writes one pointer; the device number is one of its own.
                let status = unsafe { self.driver.cuDevicePrimaryCtxRetain(&mut context, device as i32) }?;
                self.driver.check("cuDevicePrimaryCtxRetain", status)?;
                slot.context.store(context as usize, Ordering::Release);
            }
        }
        Ok(context)
    }

    /// Makes the device's primary context current.
    #[inline]
    pub fn enter(&self, device: u32) -> Result<Current<'_>> {
        self.driver.enter(self.primary(device)?)
    }

    /// Makes current the context that the memory at `addr` belongs to. Memory of pools and mapped segments belongs to
    /// no context; for these the device's primary context is used.
    pub fn enter_owner(&self, addr: u64, device: u32) -> Result<Current<'_>> {
        match self.driver.pointer(super::driver::pointer::CONTEXT, addr) {
            Ok(context) if context != 0 => self.driver.enter(context as usize as CUcontext),
            _ => self.enter(device),
        }
    }

    /// True if the device's primary context is active in this process, whoever activated it. The driver is queried even
    /// if the context is retained here, because its owner may have reset it.
    pub fn active(&self, device: u32) -> bool {
        let (mut flags, mut active) = (0, 0);
        // SAFETY: the driver writes two ints, and creates no context.
        let status = unsafe { self.driver.cuDevicePrimaryCtxGetState(device as i32, &mut flags, &mut active) };
        matches!(status, Ok(0)) && active != 0
    }
}
