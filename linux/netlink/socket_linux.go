// SPDX-License-Identifier: Apache-2.0

package netlink

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// chunk is the size of the read buffer: the kernel sends dumps in pieces of at most
// that size.
const chunk = 64 << 10

// Socket is a netlink socket to netfilter. The kernel handles a request within the
// system call that sends it, so the answers are in the queue when Send returns, or
// are added as the queue is read. Nothing here blocks.
//
// One goroutine may use a Socket at a time, from any thread.
type Socket struct {
	fd         int
	seq        uint32 // of the last request
	buf        []byte
	w          Writer
	send       int  // the size of the send buffer
	unfinished bool // answers to an earlier request may be in the queue
}

// Errors of sockets.
var (
	// ErrNoAnswer means that the queue is empty.
	ErrNoAnswer = errors.New("the kernel did not answer")

	// ErrInterrupted means that a dump may lack objects, because they changed while
	// it was read.
	ErrInterrupted = errors.New("the dump was interrupted by a change")
)

// Open opens a socket to the network namespace of the calling thread.
func Open() (*Socket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	if err == nil { // messages of other processes are no longer delivered
		err = unix.Connect(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("set up netlink socket: %w", err), unix.Close(fd))
	}
	s := NewSocket(fd)
	// Errors come without a copy of the failed message, but with the offset in it.
	for _, option := range []int{unix.NETLINK_CAP_ACK, unix.NETLINK_EXT_ACK} {
		_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, option, 1) // older kernels report less
	}
	s.send, _ = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF)
	s.seq = uint32(time.Now().Unix())
	return s, nil
}

// NewSocket returns a socket over any file descriptor, which Close closes.
func NewSocket(fd int) *Socket { return &Socket{fd: fd, buf: make([]byte, chunk)} }

// Close closes the socket.
func (s *Socket) Close() error { return unix.Close(s.fd) }

// Port is the socket's address, by which the kernel lists it in /proc/net/netlink.
func (s *Socket) Port() (uint32, error) {
	at, err := unix.Getsockname(s.fd)
	if err != nil {
		return 0, err
	}
	netlink, ok := at.(*unix.SockaddrNetlink)
	if !ok {
		return 0, unix.EAFNOSUPPORT
	}
	return netlink.Pid, nil
}

// SetBuffers asks for buffers of that many bytes. The kernel allocates memory only for
// queued messages. Without CAP_NET_ADMIN in the initial user namespace the system's
// limits apply.
func (s *Socket) SetBuffers(send, receive int) {
	if unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, send) != nil {
		_ = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUF, send)
	}
	if unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receive) != nil {
		_ = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, receive)
	}
	s.send, _ = unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUF)
}

// Limit is how many bytes can be sent at once: netlink keeps 32 of the buffer.
func (s *Socket) Limit() int { return s.send - 32 }

// Next is the sequence number of the next request.
func (s *Socket) Next() uint32 { return s.seq + 1 }

// Reserve returns Next and takes that many sequence numbers.
func (s *Socket) Reserve(n uint32) (first uint32) {
	first = s.Next()
	s.seq += n
	return first
}

// Send sends bytes as one message to the kernel. Unread answers to an earlier request
// are discarded first: the kernel starts no dump before the last one is read.
func (s *Socket) Send(ctx context.Context, b []byte) error {
	if s.unfinished {
		if err := s.Drain(ctx); err != nil {
			return err
		}
	}
	for {
		_, err := unix.Write(s.fd, b)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// Receive returns the next bytes of the queue, valid until the next call, or
// ErrNoAnswer.
func (s *Socket) Receive() ([]byte, error) {
	for {
		n, err := unix.Read(s.fd, s.buf)
		switch {
		case err == nil:
			return s.buf[:n], nil
		case errors.Is(err, unix.EAGAIN):
			return nil, ErrNoAnswer
		case !errors.Is(err, unix.EINTR):
			return nil, err
		}
	}
}

// Reports calls each for the messages that wait in the queue of a group, from so many datagrams at most, and
// tells whether those are all that wait, and whether some were lost, as they did not fit into the queue. What cannot
// be read is left out.
func (s *Socket) Reports(most int, each func(Message)) (all, lost bool, err error) {
	for range most {
		b, err := s.Receive()
		switch {
		case errors.Is(err, ErrNoAnswer):
			return true, lost, nil
		case errors.Is(err, unix.ENOBUFS):
			lost = true
			continue
		case err != nil:
			return false, lost, err
		}
		for m, err := range Messages(b) {
			if err == nil {
				each(m)
			}
		}
	}
	return false, lost, nil
}

// maxDrain bounds how many answers are discarded: a dump of some million flows.
const maxDrain = 1 << 16

// Drain empties the queue after something went wrong, so that the next request does
// not get old answers. If the context ends first, the next Send continues.
func (s *Socket) Drain(ctx context.Context) error {
	s.unfinished = true
	for range maxDrain {
		if err := ctx.Err(); err != nil {
			return err
		}
		if _, err := s.Receive(); errors.Is(err, ErrNoAnswer) {
			s.unfinished = false
			return nil
		}
	}
	return errors.New("too many unread answers to an earlier request")
}

// Request sends one request and calls each for the answers: one, or all of a dump.
// fill adds attributes; both may be nil. With FlagAck there is no answer but the
// result. An error of each ends the call.
func (s *Socket) Request(ctx context.Context, kind, flags uint16, family byte, fill func(*Writer), each func(Message) error) error {
	return s.request(ctx, kind, flags, family, flags&FlagDump == FlagDump, fill, each)
}

// RequestMany is Request for several objects by their names, each of which is one answer.
func (s *Socket) RequestMany(ctx context.Context, kind uint16, family byte, fill func(*Writer), each func(Message) error) error {
	return s.request(ctx, kind, FlagAck, family, true, fill, each)
}

func (s *Socket) request(ctx context.Context, kind, flags uint16, family byte, many bool, fill func(*Writer), each func(Message) error) error {
	s.w.Buf = s.w.Buf[:0]
	s.w.Begin(kind, flags, s.Reserve(1), family, 0)
	if fill != nil {
		fill(&s.w)
	}
	s.w.End()
	if err := s.Send(ctx, s.w.Buf); err != nil {
		return err
	}
	end, err := answers(ctx, s.Receive, s.seq, many, each)
	if err != nil {
		s.unfinished = true
		return err
	}
	return end
}

// Exchange sends the requests of a batch, calls failed for those that fail, and
// empties the batch. A returned error is the socket's: then no results are known.
func (s *Socket) Exchange(ctx context.Context, b *Batch, failed func(i int, err error)) error {
	return s.Ask(ctx, b, nil, failed)
}

// Ask is Exchange for requests with answers, which are valid during the call.
func (s *Socket) Ask(ctx context.Context, b *Batch, answered func(i int, m Message), failed func(i int, err error)) error {
	if b.n == 0 {
		return nil
	}
	defer b.reset()
	if err := ctx.Err(); err != nil {
		return err
	}
	first := s.Reserve(uint32(b.n))
	if err := s.Send(ctx, b.finish(first)); err != nil {
		return err
	}
	err := results(s.Receive, first, b.n, answered, failed)
	s.unfinished = err != nil
	return err
}

// Join has the socket receive the notices of a multicast group, until Leave.
func (s *Socket) Join(group int) error {
	return unix.SetsockoptInt(s.fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, group)
}

// Leave ends Join. What is in the queue stays there.
func (s *Socket) Leave(group int) error {
	return unix.SetsockoptInt(s.fd, unix.SOL_NETLINK, unix.NETLINK_DROP_MEMBERSHIP, group)
}

// Wait waits until there is something to receive, or ctx ends. It may be called beside other methods.
func (s *Socket) Wait(ctx context.Context) error {
	fd, err := unix.FcntlInt(uintptr(s.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	// In the poller only now: it would wake up at every message while no goroutine waits.
	file := os.NewFile(uintptr(fd), "netlink")
	defer file.Close()
	defer context.AfterFunc(ctx, func() { _ = file.SetReadDeadline(time.Unix(1, 0)) })()
	conn, err := file.SyscallConn()
	if err != nil {
		return err
	}
	return conn.Read(func(fd uintptr) bool {
		// To look at a message would also take the error that tells of lost ones (Reports).
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return n > 0 || err != nil
	})
}

// Filter has the kernel leave out what a program of classic BPF returns 0 for.
func (s *Socket) Filter(program []unix.SockFilter) error {
	return unix.SetsockoptSockFprog(s.fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]})
}

// Result returns the error that a message of TypeError or TypeDone carries, nil for
// success.
func (m Message) Result() error {
	errno, ok := m.Errno()
	switch {
	case !ok:
		return ErrMalformed
	case errno == 0:
		return nil
	}
	return unix.Errno(errno)
}

// answers calls each for the answers to the request with that sequence number: one,
// or, if there are many, all up to the end of a dump or the acknowledgement. end is the result in the last message; err states
// that the last message was not reached.
func answers(ctx context.Context, receive func() ([]byte, error), seq uint32, many bool, each func(Message) error) (end, err error) {
	interrupted := false
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		b, err := receive()
		if err != nil {
			return nil, err
		}
		for m, err := range Messages(b) {
			if err != nil {
				return nil, err
			}
			if m.Seq != seq {
				continue // of an earlier, abandoned request
			}
			interrupted = interrupted || m.Flags&FlagInterrupted != 0
			if m.Type == TypeDone || m.Type == TypeError {
				return ended(m, interrupted), nil
			}
			if err := each(m); err != nil {
				return nil, err
			}
			if !many {
				return nil, nil
			}
		}
	}
}

// ended returns the result of a dump or a request.
func ended(m Message, interrupted bool) error {
	err := m.Result()
	if err == unix.EINTR || err == nil && interrupted {
		return ErrInterrupted
	}
	return err
}

// results calls failed for each of n requests that failed, and answered, unless it is nil, for
// each other message that answers one, until the last request, which alone requests an
// acknowledgement, is done.
func results(receive func() ([]byte, error), first uint32, n int, answered func(i int, m Message), failed func(i int, err error)) error {
	for {
		b, err := receive()
		if err != nil {
			return err
		}
		for m, err := range Messages(b) {
			if err != nil {
				return err
			}
			i := m.Seq - first // also right when the numbers wrap
			switch {
			case i >= uint32(n): // a late answer to an abandoned batch
				continue
			case m.Type != TypeError:
				if answered != nil {
					answered(int(i), m)
				}
				continue
			}
			if err := m.Result(); err != nil {
				failed(int(i), err)
			}
			if i == uint32(n)-1 {
				return nil
			}
		}
	}
}

// Groups of notices of netfilter (enum nfnetlink_groups).
const (
	GroupNewFlows = 1 // NFNLGRP_CONNTRACK_NEW
	GroupNFTrace  = 9 // NFNLGRP_NFTRACE
)

// Listener receives the notices of one multicast group.
type Listener struct{ file *os.File }

// Listen joins a group, in the network namespace of the calling thread. From then on its
// notices are kept for Each.
func Listen(group int) (*Listener, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, group)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen to netlink group %d: %w", group, err), unix.Close(fd))
	}
	return &Listener{os.NewFile(uintptr(fd), "netlink notices")}, nil
}

// Close leaves the group.
func (l *Listener) Close() error { return l.file.Close() }

// Each calls handle for all notices until ctx ends, which is no error, or handle returns
// done. Notices that did not fit into the socket's memory are lost. It is
// called once.
func (l *Listener) Each(ctx context.Context, handle func(Message) (done bool)) error {
	stop := context.AfterFunc(ctx, func() { _ = l.file.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	buf := make([]byte, chunk)
	for {
		n, err := l.file.Read(buf)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENOBUFS):
			continue
		case err != nil:
			return fmt.Errorf("netlink notices: %w", err)
		}
		for m, err := range Messages(buf[:n]) {
			if err == nil && handle(m) {
				return nil
			}
		}
	}
}
