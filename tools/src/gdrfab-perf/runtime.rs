// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Vendors' runtimes, which a program has to start before it has device memory, called as such a program calls them; gdrfab
//! does not start them for its caller. They run until the process ends, because a server may serve another client, and some
//! runtimes cannot start twice; the kernel frees what they hold.

use gdrfab::error::{Error, Result, errno};
use gdrfab::hmem::{Iface, Site};
use gdrfab::sys::dl::Library;
use std::ffi::{CStr, c_char, c_int};
use std::sync::Mutex;

/// The Gaudi devices of this process: by their numbers on the host and in this process.
static ACQUIRED: Mutex<Vec<(u32, u32)>> = Mutex::new(Vec::new());

fn failed(call: &str, status: c_int, remedy: &str) -> Error {
    Error::new(errno::ENODEV, format!("{call}: status {status}{remedy}"))
}

/// Starts the runtime that `site` needs, and returns the place as this process then knows it.
pub fn start(site: Site) -> Result<Site> {
    match site.iface {
        Iface::Neuron => start_neuron().map(|()| site),
        Iface::SynapseAi => Ok(Site { device: acquire_gaudi(site.device)?, ..site }),
        _ => Ok(site),
    }
}

fn start_neuron() -> Result<()> {
    const NO_FRAMEWORK: c_int = 1;
    static STARTED: Mutex<bool> = Mutex::new(false);
    let mut started = STARTED.lock().unwrap_or_else(|e| e.into_inner());
    if *started {
        return Ok(());
    }
    let library = Library::open(&["libnrt.so.1", "libnrt.so"], false)?;
    // SAFETY: the type is that of nrt.h: a framework, and the versions of two programs.
    let init = unsafe { library.symbol::<unsafe extern "C" fn(c_int, *const c_char, *const c_char) -> c_int>("nrt_init\0") };
    let init = init.ok_or_else(|| Library::lacks(library.name, "nrt_init"))?;
    let none: &CStr = c"";
    // SAFETY: both strings are static.
    match unsafe { init(NO_FRAMEWORK, none.as_ptr(), none.as_ptr()) } {
        0 => *started = true,
        status => return Err(failed("nrt_init", status, "; the cores may be another process's (NEURON_RT_VISIBLE_CORES)")),
    }
    Ok(())
}

fn acquire_gaudi(module: u32) -> Result<u32> {
    let mut acquired = ACQUIRED.lock().unwrap_or_else(|e| e.into_inner());
    if let Some((_, here)) = acquired.iter().find(|(m, _)| *m == module) {
        return Ok(*here);
    }
    let library = Library::open(&["libSynapse.so", "libSynapse.so.1"], false)?;
    // SAFETY: the types are those of synapse_api.h.
    let (init, acquire) = unsafe {
        (
            library.symbol::<unsafe extern "C" fn() -> c_int>("synInitialize\0"),
            library.symbol::<unsafe extern "C" fn(*mut u32, u32) -> c_int>("synDeviceAcquireByModuleId\0"),
        )
    };
    let init = init.ok_or_else(|| Library::lacks(library.name, "synInitialize"))?;
    let acquire = acquire.ok_or_else(|| Library::lacks(library.name, "synDeviceAcquireByModuleId"))?;
    if acquired.is_empty() {
        // SAFETY: the function takes no argument.
        let status = unsafe { init() };
        if status != 0 {
            return Err(failed("synInitialize", status, ""));
        }
    }
    let mut here = 0;
    // SAFETY: the number is written on success only, into a live variable.
    match unsafe { acquire(&raw mut here, module) } {
        0 => {
            acquired.push((module, here));
            Ok(here)
        }
        status => {
            let remedy = "; a Gaudi serves one process, so two sides on one host need two (--remote-mem gaudi:1)";
            Err(failed(&format!("synDeviceAcquireByModuleId of device {module}"), status, remedy))
        }
    }
}
