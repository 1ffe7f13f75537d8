package xtables

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"
	"unsafe"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/host"
)

// Watch tells cheaply whether somebody else wrote to the tables filter and nat.
// The kernel counts the transactions of nf_tables; of the legacy tables it tells
// how many rules they have and in how many bytes. One goroutine uses it at a time.
type Watch struct {
	// Poll is when legacy tables are to be read whatever their size: the legacy
	// variant does not show changes that leave the size of a table as it is, and
	// nothing but reading all of it does. The nft variant does not need it.
	Poll host.Poll

	look     func() (stamp, error)
	stop     func() error
	counts   bool // stamps are numbers of transactions
	expected stamp
	before   stamp // a write of our own
	lost     bool  // expected is not what we should expect
}

// stamp is what is cheap to know of the kernel's tables.
type stamp struct {
	generation uint32
	tables     [2][2]tableInfo
}

// OpenWatch watches the tables of a variant in the network namespace of the calling
// thread.
func OpenWatch(v Variant, families []model.Family) (*Watch, error) {
	if v == NFT {
		return openGeneration()
	}
	return openInfo(families)
}

// Unwatched is for a driver whose tables nobody asks about.
func Unwatched() *Watch {
	return &Watch{look: func() (stamp, error) { return stamp{}, nil }, stop: func() error { return nil }}
}

// Close ends the watch.
func (w *Watch) Close() error { return w.stop() }

// Suspect makes the next question be answered with yes.
func (w *Watch) Suspect() { w.lost = true }

// BeforeWrite comes before transactions of our own.
func (w *Watch) BeforeWrite() {
	now, err := w.look()
	w.lost = w.lost || err != nil || now != w.expected
	w.before = now
}

// AfterWrite follows n transactions of our own.
func (w *Watch) AfterWrite(n int) {
	now, err := w.look()
	w.lost = w.lost || err != nil || w.counts && now.generation-w.before.generation != uint32(n)
	w.expected = now
}

// BeforeRead comes before all tables are read: what others have done so far is no
// news then.
func (w *Watch) BeforeRead() {
	now, err := w.look()
	w.expected, w.lost = now, err != nil
	w.Poll.Begin(time.Now())
}

// AfterRead comes after all tables have been read.
func (w *Watch) AfterRead() { w.Poll.End(time.Now()) }

// readAgain is how often legacy tables are read where nothing else is said: as
// kube-proxy's syncPeriod.
const readAgain = 30 * time.Second

// Disturbed reports whether somebody else may have written since BeforeRead.
func (w *Watch) Disturbed() (bool, error) {
	if w.lost || !w.counts && w.Poll.Due(time.Now()) {
		return true, nil
	}
	now, err := w.look()
	if err != nil {
		return false, fmt.Errorf("iptables: look for changes of others: %w", err)
	}
	return now != w.expected, nil
}

var errAnswer = errors.New("an answer that makes no sense")

// openGeneration asks the kernel for its count of nf_tables transactions, in the
// network namespace of the calling thread.
func openGeneration() (*Watch, error) {
	s, err := nl.Subscribe(unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("iptables: netlink socket: %w", err)
	}
	handle := &nl.SocketHandle{Socket: s}
	look := func() (stamp, error) {
		n, err := generation(handle)
		return stamp{generation: n}, err
	}
	return &Watch{look: look, stop: func() error { s.Close(); return nil }, counts: true, lost: true}, nil
}

func generation(handle *nl.SocketHandle) (uint32, error) {
	const subsystem = unix.NFNL_SUBSYS_NFTABLES << 8
	req := nl.NewNetlinkRequest(subsystem|unix.NFT_MSG_GETGEN, 0)
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_NETFILTER: handle}
	req.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_UNSPEC})
	answers, err := req.Execute(unix.NETLINK_NETFILTER, subsystem|unix.NFT_MSG_NEWGEN)
	if err != nil {
		return 0, fmt.Errorf("the generation of nf_tables: %w", err)
	}
	for _, a := range answers {
		if len(a) < nl.SizeofNfgenmsg {
			continue
		}
		attrs, err := nl.ParseRouteAttr(a[nl.SizeofNfgenmsg:])
		if err != nil {
			return 0, fmt.Errorf("the generation of nf_tables: %w", err)
		}
		for _, attr := range attrs {
			if attr.Attr.Type == unix.NFTA_GEN_ID && len(attr.Value) == 4 {
				return binary.BigEndian.Uint32(attr.Value), nil
			}
		}
	}
	return 0, fmt.Errorf("the generation of nf_tables: %w", errAnswer)
}

// tableInfo is what the kernel tells of a legacy table without copying it:
// struct ipt_getinfo and ip6t_getinfo of linux/netfilter_ipv4/ip_tables.h, which
// are alike.
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

// openInfo asks the kernel about the legacy tables in the network namespace of
// the calling thread.
func openInfo(families []model.Family) (*Watch, error) {
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
	look := func() (now stamp, err error) {
		for i, f := range families {
			for _, t := range []Table{Filter, NAT} {
				if now.tables[f][t], err = info(socks[i], f, t.String()); err != nil {
					return now, err
				}
			}
		}
		return now, nil
	}
	return &Watch{look: look, stop: stop, lost: true, Poll: host.Poll{Every: readAgain}}, nil
}

func infoSocket(f model.Family) (int, error) {
	domain := [...]int{model.IPv4: unix.AF_INET, model.IPv6: unix.AF_INET6}[f]
	s, err := unix.Socket(domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return -1, fmt.Errorf("iptables: raw %s socket, which the legacy variant needs: %w", f, err)
	}
	return s, nil
}

func info(sock int, f model.Family, table string) (i tableInfo, err error) {
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
