// SPDX-License-Identifier: Apache-2.0

// Package virtualserver programs the kernel's IPVS (ip_vs): virtual servers,
// their destinations (real servers) and schedulers. It knows no Service and no
// mode.
//
//	server.go      ID, Server, Destination; their text for ipvsadm; which virtual
//	               server the kernel finds for a packet (Table)
//	conn_linux.go  commands to the kernel (Conn), through moby/ipvs
//	probe_linux.go whether the kernel has IPVS, and which schedulers
//
// The names and numbers are those of include/uapi/linux/ip_vs.h.
package virtualserver
