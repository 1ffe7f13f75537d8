// SPDX-License-Identifier: Apache-2.0

package nft

import "github.com/tandem-proxy/tandem/linux/netlink"

// Messages of nf_tables (include/uapi/linux/netfilter/nf_tables.h) and of
// the batches around it. They are spelled out here so that this file and everything that
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

// Attributes of tables, chains, rules, sets and lists of elements (enum
// nft_table_attributes and its siblings); those of expressions are where those are
// encoded.
const (
	attrTable = 1 // name of the table, in all of them

	attrTableFlags    = 2
	attrTableUserdata = 6

	tableOwner = 2 // NFT_TABLE_F_OWNER in attrTableFlags: the table goes with the socket that made it

	attrChainName   = 3
	attrChainHook   = 4
	attrChainPolicy = 5
	attrChainType   = 7
	attrChainFlags  = 10

	attrHookPoint    = 1 // in attrChainHook
	attrHookPriority = 2

	attrRuleChain       = 2
	attrRuleExpressions = 4
	attrRuleUserdata    = 7

	attrSetName     = 2
	attrSetFlags    = 3
	attrSetKeyType  = 4
	attrSetKeyLen   = 5
	attrSetDataType = 6
	attrSetDataLen  = 7
	attrSetDesc     = 9
	attrSetID       = 10
	attrSetUserdata = 13
	attrSetCount    = 20 // since Linux 6.17

	attrDescSize   = 1 // in attrSetDesc
	attrDescConcat = 2
	attrFieldLen   = 1 // in an element of attrDescConcat
	attrListItem   = 1 // NFTA_LIST_ELEM

	attrElementsSet  = 2
	attrElementsList = 3

	attrDataValue    = 1 // of a constant, or of an element's data
	attrVerdictCode  = 1 // in the other kind of data
	attrVerdictChain = 2
)

// messageOf returns a message's kind within nf_tables, or -1.
func messageOf(m netlink.Message) int {
	if m.Type>>8 != subsystem {
		return -1
	}
	return int(m.Type & 0xff)
}
