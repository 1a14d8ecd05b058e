// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Discovery: what each provider offers, held against the caller's hints, with the reason where it
//! does not fit.

use super::requests::RequestId;
use crate::config;
use crate::error::{Error, Result, errno};
use crate::mr::Paths;
use crate::prov::{self, flags, op, shm};

/// A candidate, or as hints a wish: there a zero or `None` means "any".
#[derive(Clone, Debug, Default)]
pub struct Info {
    pub caps: u64,
    pub tx_op_flags: u64,
    pub msg_order: u64,
    pub paths: Paths,
    pub mr_mode: u32,
    pub ep_type: u32,
    pub threading: u32,
    pub progress: u32,
    pub addr_format: u32,
    pub cq_data_size: usize,
    pub inject_size: usize,
    pub tx_size: usize,
    pub rx_size: usize,
    pub tx_iov_limit: usize,
    pub rx_iov_limit: usize,
    pub rma_iov_limit: usize,
    pub mr_iov_limit: usize,
    pub max_msg_size: usize,
    pub mr_key_size: usize,
    pub mr_cnt: usize,
    pub cm_data_size: usize,
    pub src_addr: Option<String>,
    pub dest_addr: Option<String>,
    pub prov_name: Option<String>,
    pub fabric_name: Option<String>,
    pub domain_name: Option<String>,
    /// Why this candidate was left out.
    pub reason: Option<Error>,
    pub request: Option<RequestId>,
}

pub const EP_MSG: u32 = 1;
pub const THREAD_SAFE: u32 = 1;
pub const THREAD_DOMAIN: u32 = 3;
pub const PROGRESS_AUTO: u32 = 1;
pub const PROGRESS_MANUAL: u32 = 2;
pub const ADDR_STR: u32 = 9;

/// What the caller must honour in any domain of the shm provider, if it asked for it.
const MR_MODES: u32 = flags::MR_MODE_VIRT_ADDR | flags::MR_MODE_PROV_KEY;
/// Bits of libfabric's mr_mode that a caller may offer.
const MR_MODES_KNOWN: u32 = 0x1ffc;
const TX_OP_FLAGS: u64 = flags::COMPLETION | flags::INJECT_COMPLETE | flags::TRANSMIT_COMPLETE | flags::DELIVERY_COMPLETE;

impl Info {
    /// Checks the choices of an info that comes back to open something.
    pub(crate) fn check(&self) -> Result<()> {
        let within = |what: &str, value: u32, known: &[u32]| {
            if known.contains(&value) {
                Ok(())
            } else {
                Err(Error::invalid(format!("info->{what}: {value}, this provider knows {known:?}")))
            }
        };
        within("ep_type", self.ep_type, &[0, EP_MSG])?;
        within("threading", self.threading, &[0, THREAD_SAFE, THREAD_DOMAIN])?;
        within("progress", self.progress, &[0, PROGRESS_AUTO, PROGRESS_MANUAL])?;
        within("addr_format", self.addr_format, &[0, ADDR_STR])?;
        if self.mr_mode & !MR_MODES_KNOWN != 0 {
            return Err(Error::invalid(format!("info->mr_mode: {:#x} holds unknown bits", self.mr_mode)));
        }
        if self.tx_op_flags & !TX_OP_FLAGS != 0 {
            return Err(Error::invalid(format!("info->tx_op_flags: {:#x} holds bits that are no default flags", self.tx_op_flags)));
        }
        match &self.reason {
            Some(_) => Err(Error::invalid("info: this candidate was left out; its reason says why")),
            None => Ok(()),
        }
    }
}

fn shm_info() -> Info {
    let rma = flags::RMA | flags::READ | flags::WRITE | flags::REMOTE_READ | flags::REMOTE_WRITE;
    Info {
        caps: flags::MSG | flags::SEND | flags::RECV | rma | flags::RMA_EVENT | flags::LOCAL_COMM,
        tx_op_flags: 0,
        msg_order: flags::ORDER_ALL,
        paths: Paths::from_bits_truncate(config::get().paths),
        mr_mode: MR_MODES,
        ep_type: EP_MSG,
        threading: THREAD_SAFE,
        progress: PROGRESS_MANUAL,
        addr_format: ADDR_STR,
        cq_data_size: 8,
        inject_size: shm::INJECT_SIZE,
        tx_size: shm::TX_SIZE,
        rx_size: shm::RX_SIZE,
        tx_iov_limit: op::IOV_LIMIT,
        rx_iov_limit: op::IOV_LIMIT,
        rma_iov_limit: op::IOV_LIMIT,
        mr_iov_limit: shm::MR_IOV_LIMIT,
        max_msg_size: shm::MAX_MSG,
        mr_key_size: 8,
        mr_cnt: shm::MAX_REGIONS,
        cm_data_size: shm::DATA_MAX,
        prov_name: Some("shm".into()),
        fabric_name: Some("shm".into()),
        domain_name: Some("shm".into()),
        ..Info::default()
    }
}

/// A wish against an offer: more asked than offered is the reason to leave the candidate out.
fn at_least(name: &str, wish: usize, offer: usize) -> Result<()> {
    if wish > offer {
        return Err(Error::new(errno::ENODATA, format!("hints->{name} = {wish}, the provider's limit is {offer}")));
    }
    Ok(())
}

fn one_of(name: &str, wish: u32, offers: &[u32]) -> Result<()> {
    if wish != 0 && !offers.contains(&wish) {
        return Err(Error::new(errno::ENODATA, format!("hints->{name} = {wish}, the provider offers {offers:?}")));
    }
    Ok(())
}

fn bits(name: &str, wish: u64, offer: u64) -> Result<()> {
    if wish & !offer != 0 {
        return Err(Error::new(errno::ENODATA, format!("hints->{name}: the provider lacks the bits {:#x} of {wish:#x}", wish & !offer)));
    }
    Ok(())
}

fn name(what: &str, wish: &Option<String>, offer: &Option<String>) -> Result<()> {
    match (wish, offer) {
        (Some(w), Some(o)) if w != o => Err(Error::new(errno::ENODATA, format!("hints->{what} asks for {w:?}, this is {o:?}"))),
        _ => Ok(()),
    }
}

/// The address of a service that may be named with or without the scheme.
fn shm_address(service: &str) -> String {
    if service.starts_with(shm::SCHEME) { service.to_string() } else { format!("{}{service}", shm::SCHEME) }
}

/// Holds a candidate against the hints and takes over what they choose.
fn fit(info: &mut Info, hints: &Info) -> Result<()> {
    name("prov_name", &hints.prov_name, &info.prov_name)?;
    name("fabric_name", &hints.fabric_name, &info.fabric_name)?;
    name("domain_name", &hints.domain_name, &info.domain_name)?;
    bits("caps", hints.caps, info.caps)?;
    bits("tx_op_flags", hints.tx_op_flags, TX_OP_FLAGS)?;
    bits("msg_order", hints.msg_order, info.msg_order)?;
    bits("mr_mode", u64::from(hints.mr_mode), u64::from(MR_MODES_KNOWN))?;
    one_of("ep_type", hints.ep_type, &[EP_MSG])?;
    one_of("threading", hints.threading, &[THREAD_SAFE, THREAD_DOMAIN])?;
    one_of("progress", hints.progress, &[PROGRESS_AUTO, PROGRESS_MANUAL])?;
    one_of("addr_format", hints.addr_format, &[ADDR_STR])?;
    at_least("cq_data_size", hints.cq_data_size, info.cq_data_size)?;
    at_least("inject_size", hints.inject_size, info.inject_size)?;
    at_least("tx_size", hints.tx_size, info.tx_size)?;
    at_least("rx_size", hints.rx_size, info.rx_size)?;
    at_least("tx_iov_limit", hints.tx_iov_limit, info.tx_iov_limit)?;
    at_least("rx_iov_limit", hints.rx_iov_limit, info.rx_iov_limit)?;
    at_least("rma_iov_limit", hints.rma_iov_limit, info.rma_iov_limit)?;
    at_least("mr_iov_limit", hints.mr_iov_limit, info.mr_iov_limit)?;
    at_least("max_msg_size", hints.max_msg_size, info.max_msg_size)?;
    at_least("mr_key_size", hints.mr_key_size, info.mr_key_size)?;
    at_least("mr_cnt", hints.mr_cnt, info.mr_cnt)?;
    at_least("cm_data_size", hints.cm_data_size, info.cm_data_size)?;
    if !hints.paths.is_empty() && !hints.paths.intersects(info.paths) {
        return Err(Error::new(
            errno::ENODATA,
            format!("hints->paths asks for {}, the provider has {}", hints.paths.words(), info.paths.words()),
        ));
    }
    if let Some(addr) = &hints.src_addr {
        shm::check_address(addr).map_err(|e| e.context("hints->src_addr"))?;
        info.src_addr = Some(addr.clone());
    }
    if let Some(addr) = &hints.dest_addr {
        shm::check_address(addr).map_err(|e| e.context("hints->dest_addr"))?;
        info.dest_addr = Some(addr.clone());
    }
    // Without the bit the caller does without: offsets instead of addresses, keys of its own.
    info.mr_mode &= hints.mr_mode;
    info.caps = if hints.caps == 0 { info.caps } else { hints.caps };
    info.tx_op_flags = hints.tx_op_flags;
    info.threading = if hints.threading == 0 { info.threading } else { hints.threading };
    info.progress = if hints.progress == 0 { info.progress } else { hints.progress };
    Ok(())
}

fn consider(
    info: &mut Info,
    usable: Result<()>,
    node: Option<&str>,
    service: Option<&str>,
    asked: u64,
    hints: Option<&Info>,
) -> Result<()> {
    let config = config::get();
    usable?;
    if let Some(only) = &config.provider
        && Some(only) != info.prov_name.as_ref()
    {
        return Err(Error::new(errno::ENODATA, format!("GDRFAB_PROVIDER={only} leaves only that provider")));
    }
    let here = ["localhost", "127.0.0.1", "::1"];
    if let Some(node) = node
        && !here.contains(&node)
        && rustix::system::uname().nodename().to_str() != Ok(node)
    {
        return Err(Error::new(errno::ENODATA, format!("node {node:?} is not this host, and shm reaches only this host")));
    }
    if let Some(service) = service {
        let address = shm_address(service);
        let place = if asked & flags::SOURCE != 0 { &mut info.src_addr } else { &mut info.dest_addr };
        *place = Some(address);
    }
    match hints {
        Some(h) => fit(info, h),
        None => Ok(()),
    }
}

/// One line per candidate that was left out.
pub fn left_out(candidates: &[Info]) -> String {
    let lines: Vec<String> =
        candidates.iter().filter_map(|i| Some(format!("{}: {}", i.prov_name.as_deref().unwrap_or("?"), i.reason.as_ref()?))).collect();
    lines.join("; ")
}

/// Candidates, best first. `ENODATA` names why each was left out. With `GETINFO_ALL` those come too.
pub fn getinfo(node: Option<&str>, service: Option<&str>, asked: u64, hints: Option<&Info>) -> Result<Vec<Info>> {
    if asked & !(flags::SOURCE | flags::GETINFO_ALL) != 0 {
        return Err(Error::new(errno::EBADFLAGS, format!("flags: {:#x} holds unknown bits", asked)));
    }
    if let Some(name) = service {
        shm::check_address(&shm_address(name)).map_err(|e| e.context("service"))?;
    }
    let mut all = Vec::new();
    for offer in prov::offers() {
        let mut info = shm_info();
        if let Err(e) = consider(&mut info, offer.usable, node, service, asked, hints) {
            info.reason = Some(e);
        }
        all.push(info);
    }
    if asked & flags::GETINFO_ALL != 0 {
        return Ok(all);
    }
    if all.iter().all(|i| i.reason.is_some()) {
        return Err(Error::new(errno::ENODATA, format!("no provider fits: {}", left_out(&all))));
    }
    all.retain(|i| i.reason.is_none());
    Ok(all)
}
