// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The numbers of the ABI of libibverbs and librdmacm: of each C enumeration those that this provider uses, and all
//! completion statuses. `tests/verbs-layout` compares each number with the headers.
#![allow(non_camel_case_types, dead_code)]

/// Calls the macro `$with` with all enumerations.
macro_rules! each_enumeration {
    ($with:ident) => {
        $with! {
            ibv_node_type: c_int {}
            ibv_transport_type: c_int {
                IBV_TRANSPORT_IB = 0,
                IBV_TRANSPORT_IWARP = 1,
            }
            ibv_port_state: c_uint {
                IBV_PORT_DOWN = 1,
                IBV_PORT_INIT = 2,
                IBV_PORT_ARMED = 3,
                IBV_PORT_ACTIVE = 4,
                IBV_PORT_ACTIVE_DEFER = 5,
            }
            ibv_atomic_cap: c_uint {
                IBV_ATOMIC_NONE = 0,
                IBV_ATOMIC_HCA = 1,
            }
            ibv_odp_general_caps: c_uint {
                IBV_ODP_SUPPORT = 1 << 0,
                IBV_ODP_SUPPORT_IMPLICIT = 1 << 1,
            }
            ibv_odp_transport_cap_bits: c_uint {
                IBV_ODP_SUPPORT_SEND = 1 << 0,
                IBV_ODP_SUPPORT_RECV = 1 << 1,
                IBV_ODP_SUPPORT_WRITE = 1 << 2,
                IBV_ODP_SUPPORT_READ = 1 << 3,
                IBV_ODP_SUPPORT_ATOMIC = 1 << 4,
            }
            ibv_event_type: c_int {
                IBV_EVENT_CQ_ERR = 0,
                IBV_EVENT_QP_FATAL = 1,
                IBV_EVENT_QP_REQ_ERR = 2,
                IBV_EVENT_QP_ACCESS_ERR = 3,
                IBV_EVENT_COMM_EST = 4,
                IBV_EVENT_SQ_DRAINED = 5,
                IBV_EVENT_PATH_MIG = 6,
                IBV_EVENT_PATH_MIG_ERR = 7,
                IBV_EVENT_DEVICE_FATAL = 8,
                IBV_EVENT_PORT_ACTIVE = 9,
                IBV_EVENT_PORT_ERR = 10,
                IBV_EVENT_LID_CHANGE = 11,
                IBV_EVENT_PKEY_CHANGE = 12,
                IBV_EVENT_SM_CHANGE = 13,
                IBV_EVENT_SRQ_ERR = 14,
                IBV_EVENT_SRQ_LIMIT_REACHED = 15,
                IBV_EVENT_QP_LAST_WQE_REACHED = 16,
                IBV_EVENT_CLIENT_REREGISTER = 17,
                IBV_EVENT_GID_CHANGE = 18,
                IBV_EVENT_WQ_FATAL = 19,
            }
            ibv_mtu: c_uint {
                IBV_MTU_256 = 1,
                IBV_MTU_512 = 2,
                IBV_MTU_1024 = 3,
                IBV_MTU_2048 = 4,
                IBV_MTU_4096 = 5,
            }
            ibv_access_flags: c_uint {
                IBV_ACCESS_LOCAL_WRITE = 1 << 0,
                IBV_ACCESS_REMOTE_WRITE = 1 << 1,
                IBV_ACCESS_REMOTE_READ = 1 << 2,
                IBV_ACCESS_REMOTE_ATOMIC = 1 << 3,
                IBV_ACCESS_ON_DEMAND = 1 << 6,
                IBV_ACCESS_RELAXED_ORDERING = 1 << 20,
            }
            ibv_qp_type: c_uint {
                IBV_QPT_RC = 2,
            }
            ibv_qp_state: c_uint {
                IBV_QPS_RESET = 0,
                IBV_QPS_INIT = 1,
                IBV_QPS_RTR = 2,
                IBV_QPS_RTS = 3,
                IBV_QPS_ERR = 6,
            }
            ibv_qp_attr_mask: c_uint {
                IBV_QP_STATE = 1 << 0,
                IBV_QP_ACCESS_FLAGS = 1 << 3,
                IBV_QP_PKEY_INDEX = 1 << 4,
                IBV_QP_PORT = 1 << 5,
                IBV_QP_AV = 1 << 7,
                IBV_QP_PATH_MTU = 1 << 8,
                IBV_QP_TIMEOUT = 1 << 9,
                IBV_QP_RETRY_CNT = 1 << 10,
                IBV_QP_RNR_RETRY = 1 << 11,
                IBV_QP_RQ_PSN = 1 << 12,
                IBV_QP_MAX_QP_RD_ATOMIC = 1 << 13,
                IBV_QP_MIN_RNR_TIMER = 1 << 15,
                IBV_QP_SQ_PSN = 1 << 16,
                IBV_QP_MAX_DEST_RD_ATOMIC = 1 << 17,
                IBV_QP_DEST_QPN = 1 << 20,
            }
            ibv_wr_opcode: c_uint {
                IBV_WR_RDMA_WRITE = 0,
                IBV_WR_RDMA_WRITE_WITH_IMM = 1,
                IBV_WR_SEND = 2,
                IBV_WR_SEND_WITH_IMM = 3,
                IBV_WR_RDMA_READ = 4,
                IBV_WR_ATOMIC_CMP_AND_SWP = 5,
                IBV_WR_ATOMIC_FETCH_AND_ADD = 6,
            }
            ibv_send_flags: c_uint {
                IBV_SEND_FENCE = 1 << 0,
                IBV_SEND_SIGNALED = 1 << 1,
                IBV_SEND_INLINE = 1 << 3,
            }
            ibv_wc_opcode: c_uint {
                IBV_WC_RECV = 1 << 7,
                IBV_WC_RECV_RDMA_WITH_IMM = (1 << 7) + 1,
            }
            ibv_wc_flags: c_uint {
                IBV_WC_WITH_IMM = 1 << 1,
            }
            ibv_wc_status: c_uint {
                IBV_WC_SUCCESS = 0,
                IBV_WC_LOC_LEN_ERR = 1,
                IBV_WC_LOC_QP_OP_ERR = 2,
                IBV_WC_LOC_EEC_OP_ERR = 3,
                IBV_WC_LOC_PROT_ERR = 4,
                IBV_WC_WR_FLUSH_ERR = 5,
                IBV_WC_MW_BIND_ERR = 6,
                IBV_WC_BAD_RESP_ERR = 7,
                IBV_WC_LOC_ACCESS_ERR = 8,
                IBV_WC_REM_INV_REQ_ERR = 9,
                IBV_WC_REM_ACCESS_ERR = 10,
                IBV_WC_REM_OP_ERR = 11,
                IBV_WC_RETRY_EXC_ERR = 12,
                IBV_WC_RNR_RETRY_EXC_ERR = 13,
                IBV_WC_LOC_RDD_VIOL_ERR = 14,
                IBV_WC_REM_INV_RD_REQ_ERR = 15,
                IBV_WC_REM_ABORT_ERR = 16,
                IBV_WC_INV_EECN_ERR = 17,
                IBV_WC_INV_EEC_STATE_ERR = 18,
                IBV_WC_FATAL_ERR = 19,
                IBV_WC_RESP_TIMEOUT_ERR = 20,
                IBV_WC_GENERAL_ERR = 21,
                IBV_WC_TM_ERR = 22,
                IBV_WC_TM_RNDV_INCOMPLETE = 23,
            }
            rdma_port_space: c_uint {
                RDMA_PS_TCP = 0x106,
            }
            rdma_cm_event_type: c_uint {
                RDMA_CM_EVENT_ADDR_RESOLVED = 0,
                RDMA_CM_EVENT_ADDR_ERROR = 1,
                RDMA_CM_EVENT_ROUTE_RESOLVED = 2,
                RDMA_CM_EVENT_ROUTE_ERROR = 3,
                RDMA_CM_EVENT_CONNECT_REQUEST = 4,
                RDMA_CM_EVENT_CONNECT_RESPONSE = 5,
                RDMA_CM_EVENT_CONNECT_ERROR = 6,
                RDMA_CM_EVENT_UNREACHABLE = 7,
                RDMA_CM_EVENT_REJECTED = 8,
                RDMA_CM_EVENT_ESTABLISHED = 9,
                RDMA_CM_EVENT_DISCONNECTED = 10,
                RDMA_CM_EVENT_DEVICE_REMOVAL = 11,
                RDMA_CM_EVENT_ADDR_CHANGE = 14,
                RDMA_CM_EVENT_TIMEWAIT_EXIT = 15,
            }
        }
    };
}

/// Makes a module for each enumeration, with its type as `Type`.
macro_rules! modules {
    ($($name:ident: $type:ident { $($constant:ident = $value:expr,)* })*) => {
        $(
            pub mod $name {
                pub type Type = std::ffi::$type;
                $(pub const $constant: Type = $value;)*
            }
        )*
    };
}
each_enumeration!(modules);
