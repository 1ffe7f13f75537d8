// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"testing"

	"golang.org/x/sys/unix"
)

// The numbers are the kernel's.
func TestNumbersOfAttributes(t *testing.T) {
	for name, n := range map[string][2]int{
		"NFTA_SET_ELEM_EXPR":         {elemExpr, unix.NFTA_SET_ELEM_EXPR},
		"NFTA_SET_ELEM_PAD":          {elemPad, unix.NFTA_SET_ELEM_PAD},
		"NFTA_SET_ELEM_USERDATA":     {elemUserdata, unix.NFTA_SET_ELEM_USERDATA},
		"NFTA_PAYLOAD_SREG":          {payloadSreg, unix.NFTA_PAYLOAD_SREG},
		"NFTA_PAYLOAD_CSUM_FLAGS":    {payloadCsumFlags, unix.NFTA_PAYLOAD_CSUM_FLAGS},
		"NFTA_META_SREG":             {metaSreg, unix.NFTA_META_SREG},
		"NFTA_CT_DIRECTION":          {ctDirection, unix.NFTA_CT_DIRECTION},
		"NFTA_CMP_DATA":              {cmpData, unix.NFTA_CMP_DATA},
		"NFTA_BITWISE_XOR":           {bitwiseXor, unix.NFTA_BITWISE_XOR},
		"NFTA_IMMEDIATE_DATA":        {immediateData, unix.NFTA_IMMEDIATE_DATA},
		"NFTA_LOOKUP_FLAGS":          {lookupFlags, unix.NFTA_LOOKUP_FLAGS},
		"NFTA_DYNSET_EXPR":           {dynsetExpr, unix.NFTA_DYNSET_EXPR},
		"NFTA_HASH_TYPE":             {hashType, unix.NFTA_HASH_TYPE},
		"NFTA_NG_OFFSET":             {ngOffset, unix.NFTA_NG_OFFSET},
		"NFTA_FIB_FLAGS":             {fibFlags, unix.NFTA_FIB_FLAGS},
		"NFTA_NAT_FLAGS":             {natFlags, unix.NFTA_NAT_FLAGS},
		"NFTA_LIMIT_FLAGS":           {limitFlags, unix.NFTA_LIMIT_FLAGS},
		"NFTA_REJECT_ICMP_CODE":      {rejectICMPCode, unix.NFTA_REJECT_ICMP_CODE},
		"NFTA_COUNTER_PACKETS":       {counterPackets, unix.NFTA_COUNTER_PACKETS},
		"NFTA_MASQ_FLAGS":            {masqFlags, unix.NFTA_MASQ_FLAGS},
		"NFT_MSG_GETGEN":             {msgGetGen, unix.NFT_MSG_GETGEN},
		"NFT_REG32_00":               {reg0, unix.NFT_REG32_00},
		"NFT_META_NFTRACE":           {metaNFTrace, unix.NFT_META_NFTRACE},
		"NFT_PAYLOAD_NETWORK_HEADER": {baseNetwork, unix.NFT_PAYLOAD_NETWORK_HEADER},
	} {
		if n[0] != n[1] {
			t.Errorf("%s is %d, not %d", name, n[1], n[0])
		}
	}
}
