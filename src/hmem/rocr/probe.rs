// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds the agents of the HSA runtime, their pools, and which GPU can access which memory.

use super::super::{DeviceFacts, DeviceId};
use super::driver::*;
use crate::error::{Error, Result, errno};
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

/// One GPU of this process.
#[derive(Clone, Copy)]
pub struct Gpu {
    pub(super) agent: Agent,
    /// The GPU's coarse-grained pool, and the allocation granule of that pool.
    pub(super) pool: Option<(Pool, u64)>,
}

/// Initialises the runtime, or takes one more reference if the process has initialised it.
pub fn initialise(hsa: &Hsa, adopt: bool) -> Result<()> {
    if adopt {
        let mut version = 0u64;
        // SAFETY: writes 2 bytes; fails if no one has initialised the runtime.
        let known = unsafe { call!(hsa, hsa_system_get_info(SYSTEM_INFO_VERSION_MAJOR, ptr::from_mut(&mut version).cast())) };
        known.map_err(|e| e.context("the process has not initialised HSA, and GDRFAB_HMEM_DRIVER=adopt forbids gdrfab to do so"))?;
    }
    // The runtime counts the calls of hsa_init, so with `adopt` this call keeps the runtime initialised. The call fails
    // without /dev/kfd, or without the right to open that file.
    // SAFETY: callable at any time.
    unsafe { call!(hsa, hsa_init()) }.map_err(|e| Error::new(errno::ENODEV, format!("no usable GPU: {}", e.words)))
}

/// A CPU agent that stands for host memory, the GPUs, and the properties of each GPU.
pub fn look(hsa: &Hsa) -> Result<(Agent, Vec<Gpu>, Vec<DeviceFacts>)> {
    let mut agents: Vec<Agent> = Vec::new();
    // SAFETY: the callback gets our list, during this call only.
    unsafe { call!(hsa, hsa_iterate_agents(list_agent, ptr::from_mut(&mut agents).cast()))? };
    let of_kind = |kind| agents.iter().copied().filter(move |a| number(hsa, *a, AGENT_INFO_DEVICE).is_ok_and(|k| k == kind));
    let cpu = of_kind(DEVICE_TYPE_CPU).next().ok_or_else(|| Error::new(errno::ENODEV, "the HSA runtime lists no CPU"))?;
    let gpus: Vec<Gpu> = of_kind(DEVICE_TYPE_GPU).map(|agent| Gpu { agent, pool: pool_of(hsa, agent) }).collect();
    if gpus.is_empty() {
        return Err(Error::new(errno::ENODEV, "the HSA runtime lists no GPU"));
    }
    let facts = (0..gpus.len()).map(|i| facts(hsa, &gpus, i)).collect();
    Ok((cpu, gpus, facts))
}

unsafe extern "C" fn list_agent(agent: Agent, data: *mut c_void) -> u32 {
    // SAFETY: `data` is the list that `look` passes.
    catch_panic(|| unsafe { (*data.cast::<Vec<Agent>>()).push(agent) });
    STATUS_SUCCESS
}

unsafe extern "C" fn list_pool(pool: Pool, data: *mut c_void) -> u32 {
    // SAFETY: `data` is the list that `pool_of` passes.
    catch_panic(|| unsafe { (*data.cast::<Vec<Pool>>()).push(pool) });
    STATUS_SUCCESS
}

/// Runs the body of a callback. A panic must not unwind into the runtime, which would end the process. The panic's
/// value is not dropped, because its drop may panic again.
pub fn catch_panic(f: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(f)) {
        std::mem::forget(panic);
    }
}

/// A 32-bit attribute.
pub fn number(hsa: &Hsa, agent: Agent, attribute: u32) -> Result<u32> {
    let mut value = 0u32;
    // SAFETY: the caller names an attribute of 4 bytes.
    unsafe { call!(hsa, hsa_agent_get_info(agent, attribute, ptr::from_mut(&mut value).cast()))? };
    Ok(value)
}

/// An attribute of text.
fn text(hsa: &Hsa, agent: Agent, attribute: u32) -> Option<String> {
    let mut bytes = [0u8; 65]; // 64 at most, and a NUL
    // SAFETY: the buffer has room for the longest text of HSA.
    unsafe { call!(hsa, hsa_agent_get_info(agent, attribute, bytes.as_mut_ptr().cast())).ok()? };
    let text = bytes.split(|b| *b == 0).next().unwrap_or_default();
    Some(String::from_utf8_lossy(text).trim().to_string()).filter(|t| !t.is_empty())
}

fn pool_info(hsa: &Hsa, pool: Pool, attribute: u32) -> u64 {
    let mut value = 0u64;
    // SAFETY: every attribute in use has 8 bytes or fewer, and unwritten bytes are zero.
    let status = unsafe { call!(hsa, hsa_amd_memory_pool_get_info(pool, attribute, ptr::from_mut(&mut value).cast())) };
    status.map_or(0, |()| value)
}

/// The agent's coarse-grained pool, and its allocation granule.
fn pool_of(hsa: &Hsa, agent: Agent) -> Option<(Pool, u64)> {
    let mut pools: Vec<Pool> = Vec::new();
    // SAFETY: the callback gets our list, during this call only.
    unsafe { call!(hsa, hsa_amd_agent_iterate_memory_pools(agent, list_pool, ptr::from_mut(&mut pools).cast())).ok()? };
    let pool = pools.into_iter().find(|p| {
        pool_info(hsa, *p, POOL_INFO_SEGMENT) == u64::from(SEGMENT_GLOBAL)
            && pool_info(hsa, *p, POOL_INFO_GLOBAL_FLAGS) as u32 & POOL_FLAG_COARSE_GRAINED != 0
            && pool_info(hsa, *p, POOL_INFO_ALLOC_ALLOWED) != 0
    })?;
    Some((pool, pool_info(hsa, pool, POOL_INFO_ALLOC_GRANULE).max(1)))
}

/// "0000:4d:00.0" from a domain and a bus-device-function number.
fn pci_address(domain: u32, bdf: u32) -> String {
    format!("{domain:04x}:{:02x}:{:02x}.{:x}", bdf >> 8 & 0xff, bdf >> 3 & 0x1f, bdf & 7)
}

/// The 16 digits of "GPU-0123456789abcdef". A GPU without a UUID reports "GPU-XX"; then the PCI address is used.
fn identity(uuid: Option<&str>, pci: &str) -> DeviceId {
    let digits = uuid.and_then(|u| u.strip_prefix("GPU-")).filter(|d| d.len() == 16).unwrap_or(pci);
    let mut id = DeviceId::default();
    id.iter_mut().zip(digits.bytes()).for_each(|(to, from)| *to = from);
    id
}

fn dmabuf(hsa: &Hsa) -> Option<Error> {
    let mut yes = 0u64;
    // SAFETY: writes one byte.
    let asked = unsafe { call!(hsa, hsa_system_get_info(SYSTEM_INFO_DMABUF_SUPPORTED, ptr::from_mut(&mut yes).cast())) };
    match asked {
        _ if !hsa.has("hsa_amd_portable_export_dmabuf") => {
            Some(Error::new(errno::ENOSYS, format!("{} has no symbol hsa_amd_portable_export_dmabuf", hsa.library())))
        }
        Err(e) => Some(Error::new(errno::EOPNOTSUPP, format!("HSA_AMD_SYSTEM_INFO_DMABUF_SUPPORTED: {}", e.words))),
        Ok(()) if yes & 0xff == 0 => {
            Some(Error::fixed(errno::EOPNOTSUPP, "HSA_AMD_SYSTEM_INFO_DMABUF_SUPPORTED: the kernel or its driver has no dma-buf export"))
        }
        Ok(()) => None,
    }
}

fn facts(hsa: &Hsa, gpus: &[Gpu], index: usize) -> DeviceFacts {
    let Gpu { agent, pool } = gpus[index];
    let pci = number(hsa, agent, AGENT_INFO_BDFID)
        .map(|bdf| pci_address(number(hsa, agent, AGENT_INFO_DOMAIN).unwrap_or(0), bdf))
        .unwrap_or_default();
    let missing = ["hsa_amd_ipc_memory_create", "hsa_amd_ipc_memory_attach", "hsa_amd_ipc_memory_detach"].into_iter().find(|s| !hsa.has(s));
    DeviceFacts {
        id: identity(text(hsa, agent, AGENT_INFO_UUID).as_deref(), &pci),
        name: text(hsa, agent, AGENT_INFO_PRODUCT_NAME).or_else(|| text(hsa, agent, AGENT_INFO_NAME)).unwrap_or_default(),
        pci,
        memory: pool.map_or(0, |(pool, _)| pool_info(hsa, pool, POOL_INFO_SIZE)),
        dmabuf: dmabuf(hsa),
        ipc: missing.map(|s| Error::new(errno::ENOSYS, format!("{} has no symbol {s}", hsa.library()))),
        peers: (0..gpus.len() as u32).filter(|i| *i as usize != index && pool.is_some_and(|p| can_reach(hsa, gpus, *i, p.0))).collect(),
    }
}

fn can_reach(hsa: &Hsa, gpus: &[Gpu], who: u32, pool: Pool) -> bool {
    let (mut access, Some(gpu)) = (POOL_ACCESS_NEVER, gpus.get(who as usize)) else { return false };
    let value = ptr::from_mut(&mut access).cast();
    // SAFETY: `access` has the attribute's 4 bytes.
    let asked = unsafe { call!(hsa, hsa_amd_agent_memory_pool_get_info(gpu.agent, pool, AGENT_POOL_INFO_ACCESS, value)) };
    asked.is_ok() && access != POOL_ACCESS_NEVER
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_have_names_that_other_processes_know() {
        assert_eq!(pci_address(0, 0x4d << 8 | 3 << 3 | 1), "0000:4d:03.1");
        assert_eq!(&identity(Some("GPU-0123456789abcdef"), "0000:4d:00.0"), b"0123456789abcdef");
        assert_eq!(&identity(Some("GPU-XX"), "0000:4d:00.0"), b"0000:4d:00.0\0\0\0\0");
        assert_eq!(&identity(None, "0000:4d:00.0"), b"0000:4d:00.0\0\0\0\0");
    }
}
