// SPDX-License-Identifier: Apache-2.0

package xtables

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"
	"unsafe"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/host"
)

// Watch detects external changes of the tables filter and nat at little cost. The kernel
// counts the transactions of nf_tables; for legacy tables it reports the number and
// size of their rules. One goroutine may write at a time, another one may read.
type Watch struct {
	// Poll schedules full reads of legacy tables: a change that keeps the number and
	// size of rules can only be seen by reading all of them. The nft variant does not
	// need it.
	Poll host.Poll

	read         func() (tableState, error)
	closeSockets func() error
	counts       bool // the state is a count of transactions

	mu       sync.Mutex // guards the fields below, and calls of read
	expected tableState
	before   tableState // before an own write
	lost     bool       // expected is out of date
}

// tableState is the state that the kernel reports at almost no cost: the generation of
// nf_tables, or information on the legacy tables by family and table.
type tableState struct {
	generation uint32
	tables     [2][2]tableInfo
}

// OpenWatch watches the tables of a variant in the network namespace of the calling
// thread.
func OpenWatch(v Variant, families []model.Family) (*Watch, error) {
	if v == NFT {
		return watchGeneration()
	}
	return watchTableInfo(families)
}

// noWatch detects nothing.
func noWatch() *Watch {
	return &Watch{read: func() (tableState, error) { return tableState{}, nil }, closeSockets: func() error { return nil }}
}

// Close closes the watch's sockets.
func (w *Watch) Close() error { return w.closeSockets() }

// Invalidate makes the next Disturbed report true.
func (w *Watch) Invalidate() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lost = true
}

// BeforeWrite is called before own transactions.
func (w *Watch) BeforeWrite() {
	w.mu.Lock()
	defer w.mu.Unlock()
	now, err := w.read()
	w.lost = w.lost || err != nil || now != w.expected
	w.before = now
}

// AfterWrite is called after n own transactions.
func (w *Watch) AfterWrite(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now, err := w.read()
	w.lost = w.lost || err != nil || w.counts && now.generation-w.before.generation != uint32(n)
	w.expected = now
}

// BeforeRead is called before all tables are read: the reading covers external changes
// until then.
func (w *Watch) BeforeRead() {
	w.mu.Lock()
	defer w.mu.Unlock()
	now, err := w.read()
	w.expected, w.lost = now, err != nil
	w.Poll.Begin(time.Now())
}

// AfterRead is called after all tables were read.
func (w *Watch) AfterRead() { w.Poll.End(time.Now()) }

// readAgain is the default interval of reading legacy tables, that of kube-proxy's
// syncPeriod.
const readAgain = 30 * time.Second

// Disturbed reports whether there may have been an external change since BeforeRead, or
// legacy tables are due to be read.
func (w *Watch) Disturbed() (bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.lost || !w.counts && w.Poll.Due(time.Now()) {
		return true, nil
	}
	now, err := w.read()
	if err != nil {
		return false, fmt.Errorf("iptables: detect external changes: %w", err)
	}
	return now != w.expected, nil
}

var errMalformed = errors.New("malformed netlink response")

// watchGeneration watches the kernel's count of nf_tables transactions in the network
// namespace of the calling thread.
func watchGeneration() (*Watch, error) {
	s, err := nl.Subscribe(unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("iptables: netlink socket: %w", err)
	}
	handle := &nl.SocketHandle{Socket: s}
	look := func() (tableState, error) {
		n, err := readGeneration(handle)
		return tableState{generation: n}, err
	}
	return &Watch{read: look, closeSockets: func() error { s.Close(); return nil }, counts: true, lost: true}, nil
}

func readGeneration(handle *nl.SocketHandle) (uint32, error) {
	const subsystem = unix.NFNL_SUBSYS_NFTABLES << 8
	req := nl.NewNetlinkRequest(subsystem|unix.NFT_MSG_GETGEN, 0)
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_NETFILTER: handle}
	req.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_UNSPEC})
	answers, err := req.Execute(unix.NETLINK_NETFILTER, subsystem|unix.NFT_MSG_NEWGEN)
	if err != nil {
		return 0, fmt.Errorf("nf_tables generation: %w", err)
	}
	for _, a := range answers {
		if len(a) < nl.SizeofNfgenmsg {
			continue
		}
		attrs, err := nl.ParseRouteAttr(a[nl.SizeofNfgenmsg:])
		if err != nil {
			return 0, fmt.Errorf("nf_tables generation: %w", err)
		}
		for _, attr := range attrs {
			if attr.Attr.Type == unix.NFTA_GEN_ID && len(attr.Value) == 4 {
				return binary.BigEndian.Uint32(attr.Value), nil
			}
		}
	}
	return 0, fmt.Errorf("nf_tables generation: %w", errMalformed)
}

// tableInfo is struct ipt_getinfo, or the identical ip6t_getinfo, of a legacy table
// (linux/netfilter_ipv4/ip_tables.h).
type tableInfo struct {
	name       [32]byte
	validHooks uint32
	hookEntry  [5]uint32
	underflow  [5]uint32
	entries    uint32
	size       uint32
}

// getInfo is IPT_SO_GET_INFO and IP6T_SO_GET_INFO.
const getInfo = 64

// watchTableInfo watches the kernel's information on legacy tables in the network namespace
// of the calling thread.
func watchTableInfo(families []model.Family) (*Watch, error) {
	var socks []int
	stop := func() error {
		var errs []error
		for _, s := range socks {
			errs = append(errs, unix.Close(s))
		}
		return errors.Join(errs...)
	}
	for _, f := range families {
		s, err := infoSocket(f)
		if err != nil {
			return nil, errors.Join(err, stop())
		}
		socks = append(socks, s)
	}
	look := func() (now tableState, err error) {
		for i, f := range families {
			for _, t := range []Table{Filter, NAT} {
				if now.tables[f][t], err = readTableInfo(socks[i], f, t.String()); err != nil {
					return now, err
				}
			}
		}
		return now, nil
	}
	return &Watch{read: look, closeSockets: stop, lost: true, Poll: host.Poll{Every: readAgain}}, nil
}

func infoSocket(f model.Family) (int, error) {
	domain := [...]int{model.IPv4: unix.AF_INET, model.IPv6: unix.AF_INET6}[f]
	s, err := unix.Socket(domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return -1, fmt.Errorf("iptables: raw %s socket, which the legacy variant needs: %w", f, err)
	}
	return s, nil
}

func readTableInfo(sock int, f model.Family, table string) (i tableInfo, err error) {
	level := [...]int{model.IPv4: unix.IPPROTO_IP, model.IPv6: unix.IPPROTO_IPV6}[f]
	copy(i.name[:len(i.name)-1], table)
	size := uint32(unsafe.Sizeof(i))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(sock), uintptr(level), getInfo,
		uintptr(unsafe.Pointer(&i)), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return i, fmt.Errorf("%s table %s: %w", f, table, errno)
	}
	return i, nil
}
