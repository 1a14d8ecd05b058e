// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compile-time checks that the header's constants, which are literals, equal the values that the layers
//! below use.

use super::cq::*;
use super::types::*;
use crate::error::{Code, errno};
use crate::fabric;
use crate::hmem::{Iface, MemoryKind};
use crate::mr::Paths;
use crate::prov::{EventKind, flags, info};

const _: () = {
    assert!(GDRFAB_MSG == flags::MSG && GDRFAB_RMA == flags::RMA && GDRFAB_READ == flags::READ && GDRFAB_WRITE == flags::WRITE);
    assert!(GDRFAB_RECV == flags::RECV && GDRFAB_SEND == flags::SEND && GDRFAB_TRANSMIT == flags::SEND);
    assert!(GDRFAB_REMOTE_READ == flags::REMOTE_READ && GDRFAB_REMOTE_WRITE == flags::REMOTE_WRITE);
    assert!(GDRFAB_REMOTE_CQ_DATA == flags::REMOTE_CQ_DATA && GDRFAB_MORE == flags::MORE && GDRFAB_FENCE == flags::FENCE);
    assert!(GDRFAB_COMPLETION == flags::COMPLETION && GDRFAB_INJECT == flags::INJECT);
    assert!(GDRFAB_INJECT_COMPLETE == flags::INJECT_COMPLETE && GDRFAB_TRANSMIT_COMPLETE == flags::TRANSMIT_COMPLETE);
    assert!(GDRFAB_DELIVERY_COMPLETE == flags::DELIVERY_COMPLETE && GDRFAB_MR_DMABUF == flags::MR_DMABUF && GDRFAB_HMEM == flags::HMEM);
    assert!(GDRFAB_LOCAL_COMM == flags::LOCAL_COMM && GDRFAB_REMOTE_COMM == flags::REMOTE_COMM && GDRFAB_RMA_EVENT == flags::RMA_EVENT);
    assert!(
        GDRFAB_SOURCE == flags::SOURCE
            && GDRFAB_SELECTIVE_COMPLETION == flags::SELECTIVE_COMPLETION
            && GDRFAB_GETINFO_ALL == flags::GETINFO_ALL
    );
    assert!(GDRFAB_MR_VIRT_ADDR == flags::MR_MODE_VIRT_ADDR && GDRFAB_MR_PROV_KEY == flags::MR_MODE_PROV_KEY);
    assert!(GDRFAB_PATH_DIRECT == Paths::DIRECT.bits() && GDRFAB_PATH_CMA == Paths::CMA.bits());
    assert!(GDRFAB_PATH_STAGED == Paths::STAGED.bits() && GDRFAB_PATH_IPC == Paths::IPC.bits());
    assert!(GDRFAB_PATH_NIC == Paths::NIC.bits() && GDRFAB_PATH_DMABUF == Paths::DMABUF.bits());
    assert!(GDRFAB_PATH_PEER_MEM == Paths::PEER_MEM.bits() && GDRFAB_RX_CQ_DATA == flags::RX_CQ_DATA);
    assert!(GDRFAB_PATH_SOCKET == Paths::SOCKET.bits() && GDRFAB_MR_LOCAL == flags::MR_MODE_LOCAL);
    assert!(GDRFAB_HMEM_SYSTEM == Iface::System as u32 && GDRFAB_HMEM_SYNAPSEAI == Iface::SynapseAi as u32);
    assert!(GDRFAB_HMEM_KIND_HOST == MemoryKind::Host as u32 && GDRFAB_HMEM_KIND_PLAIN == MemoryKind::Plain as u32);
    assert!(GDRFAB_HMEM_KIND_POOL == MemoryKind::Pool as u32 && GDRFAB_HMEM_KIND_SEGMENT == MemoryKind::Segment as u32);
    assert!(GDRFAB_HMEM_KIND_MANAGED == MemoryKind::Managed as u32 && GDRFAB_HMEM_KIND_PINNED == MemoryKind::Pinned as u32);
    assert!(GDRFAB_HMEM_KIND_IMPORTED == MemoryKind::Imported as u32);
    assert!(GDRFAB_NOTIFY == EventKind::Notify as u32 && GDRFAB_SHUTDOWN == EventKind::Shutdown as u32);
    assert!(GDRFAB_ETOOSMALL == errno::ETOOSMALL && GDRFAB_EOPBADSTATE == errno::EOPBADSTATE && GDRFAB_EAVAIL == errno::EAVAIL);
    assert!(GDRFAB_EBADFLAGS == errno::EBADFLAGS && GDRFAB_ENOEQ == errno::ENOEQ && GDRFAB_ENOCQ == errno::ENOCQ);
    assert!(
        GDRFAB_ETRUNC == errno::ETRUNC
            && GDRFAB_ENOKEY == errno::ENOKEY
            && GDRFAB_EOVERRUN == errno::EOVERRUN
            && GDRFAB_ENORX == errno::ENORX
    );
    assert!(
        GDRFAB_PROV_KEY == Code::Key.0
            && GDRFAB_PROV_REJECTED == Code::Rejected.0
            && GDRFAB_PROV_BUSY == Code::Busy.0
            && GDRFAB_PROV_DEADLINE == Code::Deadline.0
            && GDRFAB_PROV_VERBS == Code::verbs(0).0
    );
    assert!(GDRFAB_CM_DATA_MAX == info::CM_DATA_MAX && GDRFAB_ADDR_MAX == info::ADDR_MAX);
    assert!(GDRFAB_TAGGED == flags::TAGGED && GDRFAB_MULTI_RECV == flags::MULTI_RECV && GDRFAB_DIRECTED_RECV == flags::DIRECTED_RECV);
    assert!(GDRFAB_PEEK == flags::PEEK && GDRFAB_CLAIM == flags::CLAIM && GDRFAB_DISCARD == flags::DISCARD);
    assert!(GDRFAB_EP_RDM == fabric::EP_RDM);
    assert!(GDRFAB_NAME_LEN == fabric::NAME_LEN && GDRFAB_ADDR_UNSPEC == fabric::UNSPEC);
    assert!(GDRFAB_EP_MSG == fabric::EP_MSG && GDRFAB_THREAD_SAFE == fabric::THREAD_SAFE && GDRFAB_THREAD_DOMAIN == fabric::THREAD_DOMAIN);
    assert!(
        GDRFAB_PROGRESS_AUTO == fabric::PROGRESS_AUTO
            && GDRFAB_PROGRESS_MANUAL == fabric::PROGRESS_MANUAL
            && GDRFAB_ADDR_STR == fabric::ADDR_STR
    );
};
