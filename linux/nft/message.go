// SPDX-License-Identifier: Apache-2.0

package nft

import "github.com/tandem-proxy/tandem/linux/netlink"

// Messages of nf_tables (include/uapi/linux/netfilter/nf_tables.h) and of
// the batches around it. They are spelled out here so that this file and all that
// builds on it compile on any system.
const (
	msgNewTable = iota
	msgGetTable
	msgDelTable
	msgNewChain
	msgGetChain
	msgDelChain
	msgNewRule
	msgGetRule
	msgDelRule
	msgNewSet
	msgGetSet
	msgDelSet
	msgNewSetElem
	msgGetSetElem
	msgDelSetElem
	msgNewGen
	msgGetGen

	subsystem  = 10 // NFNL_SUBSYS_NFTABLES
	batchBegin = 0x10
	batchEnd   = 0x11
)

// messageOf returns a message's kind within nf_tables, or -1.
func messageOf(m netlink.Message) int {
	if m.Type>>8 != subsystem {
		return -1
	}
	return int(m.Type & 0xff)
}
