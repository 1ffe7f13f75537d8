// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/linux/netlink"
)

// program is classic BPF that passes the reports of new flows that are TCP and, unless unmarked,
// redirected. Netfilter's attributes begin behind two headers; SKF_AD_NLATTR and SKF_AD_NLATTR_NEST
// replace A, where a search begins, by the place of attribute X, 0 if there is none.
func program(unmarked bool) []unix.SockFilter {
	const (
		load      = unix.BPF_LD | unix.BPF_IMM
		find      = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		attr      = 0xfffff000 + 12 // SKF_AD_OFF + SKF_AD_NLATTR
		nest      = 0xfffff000 + 16 // SKF_AD_OFF + SKF_AD_NLATTR_NEST
		begin     = netlink.HeaderLen + netlink.FamilyLen
		attrValue = 4 // behind the attribute's own header
		all       = 0xffffffff
	)
	var p []unix.SockFilter
	add := func(code uint16, k uint32, jump ...uint8) {
		f := unix.SockFilter{Code: code, K: k}
		if len(jump) == 2 {
			f.Jt, f.Jf = jump[0], jump[1]
		}
		p = append(p, f)
	}
	drop := func() { add(unix.BPF_RET|unix.BPF_K, 0) }
	search := func(how, kind uint32) {
		add(unix.BPF_LDX|unix.BPF_IMM, kind)
		add(find, how)
		add(unix.BPF_JMP|unix.BPF_JEQ|unix.BPF_K, 0, 0, 1)
		drop()
	}
	add(load, begin)
	search(attr, ctaTupleOrig)
	search(nest, ctaTupleProto)
	search(nest, ctaProtoNum)
	add(unix.BPF_MISC|unix.BPF_TAX, 0)
	add(unix.BPF_LD|unix.BPF_B|unix.BPF_IND, attrValue)
	add(unix.BPF_JMP|unix.BPF_JEQ|unix.BPF_K, unix.IPPROTO_TCP, 1, 0)
	drop()
	if !unmarked {
		add(load, begin)
		search(attr, ctaStatus)
		add(unix.BPF_MISC|unix.BPF_TAX, 0)
		add(unix.BPF_LD|unix.BPF_W|unix.BPF_IND, attrValue)
		add(unix.BPF_JMP|unix.BPF_JSET|unix.BPF_K, dstNAT, 1, 0)
		drop()
	}
	add(unix.BPF_RET|unix.BPF_K, all)
	return p
}
