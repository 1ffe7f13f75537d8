// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/linux/netlink"
)

// Temporary tables are there for as long as the process that has made them: those of probes, of monitors and of traces.
// Since Linux 5.12 the kernel deletes them with the socket that made them. Before, a process that is killed leaves
// them, and those of monitors and traces go on to mark packets: Sweep deletes them. Each has the port of a socket of its process in
// its name, by which the kernel tells whether the process still runs. A process id would not do: two containers on
// one network may both be process 1.
const (
	probeTable   = "tandem-probe-"
	monitorTable = "tandem-monitor-"
	traceTable   = "tandem-trace-"
)

// temporaryName names a table that goes with a socket. The random number tells it from one that an earlier socket
// of that port has left.
func temporaryName(prefix string, sock *netlink.Socket) (string, error) {
	port, err := sock.Port()
	if err != nil {
		return "", fmt.Errorf("port of a netlink socket: %w", err)
	}
	return fmt.Sprintf("%s%08x-%08x", prefix, port, rand.Uint32()), nil
}

// portOf returns the port in the name of a temporary table.
func portOf(name string) (port uint32, ok bool) {
	for _, prefix := range []string{probeTable, monitorTable, traceTable} {
		rest, is := strings.CutPrefix(name, prefix)
		text, _, cut := strings.Cut(rest, "-")
		if n, err := strconv.ParseUint(text, 16, 32); is && cut && err == nil {
			return uint32(n), true
		}
	}
	return 0, false
}

// withOwner calls create with the flags of a table that goes with its socket, and without
// them on kernels before 5.12, which know no owner.
func withOwner(create func(flags uint32) error) error {
	err := create(tableOwner)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) {
		err = create(0)
	}
	return err
}

// Sweep deletes the temporary tables in the network namespace of this thread whose process is gone, and no other table.
func Sweep(ctx context.Context) error {
	sock, err := openSocket()
	if err != nil {
		return err
	}
	defer sock.Close()
	type left struct {
		family byte
		name   string
		port   uint32
	}
	var tables []left
	err = request(ctx, sock, msgGetTable, netlink.FlagDump, unix.AF_UNSPEC, nil, func(m netlink.Message) error {
		name, comment, _ := parseTable(m)
		if port, temporary := portOf(name); temporary && messageOf(m) == msgNewTable && strings.HasPrefix(comment, Owner) {
			tables = append(tables, left{m.Family(), name, port})
		}
		return nil
	})
	if err != nil && !errors.Is(err, dataplane.ErrInterrupted) { // the next one deletes the rest
		return fmt.Errorf("nftables: list tables: %w", err)
	}
	if len(tables) == 0 {
		return nil
	}
	live, err := netfilterPorts() // read later: a process has its socket before its table
	if err != nil {
		return fmt.Errorf("nftables: list sockets: %w", err)
	}
	var failed error
	for _, t := range tables {
		if live[t.port] {
			continue
		}
		b := newPlainBatch(sock.Next(), t.family, t.name)
		b.remove()
		if err := b.commit(ctx, sock); err != nil && !errors.Is(err, unix.ENOENT) { // else another process has deleted it
			failed = errors.Join(failed, fmt.Errorf("nftables: delete table %s %s: %w", netfilterName(t.family), t.name, err))
		}
	}
	return failed
}

// netfilterPorts are the ports of the netlink sockets to netfilter in the network namespace of this thread.
func netfilterPorts() (map[uint32]bool, error) {
	f, err := os.Open("/proc/thread-self/net/netlink")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	ports := map[uint32]bool{}
	lines := bufio.NewScanner(f)
	for lines.Scan() { // sk Eth Pid Groups ...
		fields := strings.Fields(lines.Text())
		if len(fields) < 3 || fields[1] != strconv.Itoa(unix.NETLINK_NETFILTER) {
			continue
		}
		port, err := strconv.ParseUint(fields[2], 10, 32)
		if err != nil {
			return nil, err
		}
		ports[uint32(port)] = true
	}
	return ports, lines.Err()
}
