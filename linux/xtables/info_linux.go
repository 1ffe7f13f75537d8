package xtables

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/model"
)

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
	return &Watch{look: look, stop: stop, lost: true, Again: readAgain}, nil
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
