package relay

import (
	"errors"
	"net"
	"os"
	"slices"
	"syscall"
	"time"
)

// retry leaves all but the first tries to reach an endpoint to a goroutine.
func (k *link) retry(tries int) {
	s, fd, to := k.loop.server, k.fds[clientSide], k.choice
	k.forget()
	s.work.Go(func() {
		c, err := s.adopt(fd)
		if err != nil {
			s.lost(err, to.share)
			return
		}
		s.hold(c)
		s.connect(c, to, tries)
	})
}

// give leaves both directions to goroutines, with the rest of what a side said.
func (k *link) give(from side, rest []byte) {
	s, fds, by := k.loop.server, k.fds, k.share
	for _, fd := range fds {
		k.loop.ignore(fd) // epoll knows it by the socket, which stays open
	}
	var said [2][]byte
	said[from] = slices.Clone(rest)
	k.forget()
	s.work.Go(func() {
		client, err := s.adopt(fds[clientSide])
		up, late := s.adopt(fds[endpointSide])
		if err = errors.Join(err, late); err != nil {
			for _, c := range []*net.TCPConn{client, up} {
				if c != nil {
					reset(c)
				}
			}
			s.lost(err, by)
			return
		}
		s.hold(client)
		s.transfer(client, up, by, said[clientSide], said[endpointSide])
	})
}

// lost is the end of a connection that goroutines could not take over.
func (s *Server) lost(err error, by *share) {
	s.stats.failed.Add(1)
	s.options.Log.Warn("a connection is lost", "error", err)
	s.leave(by)
}

// adopt makes a socket one that goroutines can wait for. It gets another
// descriptor; this one is closed, and after an error the socket is reset.
func (s *Server) adopt(fd int) (*net.TCPConn, error) {
	f := os.NewFile(uintptr(fd), "")
	defer f.Close()
	for lacks := 0; ; lacks++ {
		c, err := standard(f, fd)
		if err == nil {
			return c, nil
		}
		if !lacking(err) || lacks == pauses || s.ctx.Err() != nil {
			abrupt(fd)
			return nil, err
		}
		s.stats.scarce.Add(1)
		s.scarce.notice(time.Now())
		sleep(s.ctx, breath)
	}
}

// standard makes a socket one of net, which has ideas of its own about keep-alive.
func standard(f *os.File, fd int) (*net.TCPConn, error) {
	options := [...]int{syscall.TCP_KEEPIDLE, syscall.TCP_KEEPINTVL, syscall.TCP_KEEPCNT}
	var had [len(options)]int
	for i, o := range options {
		had[i], _ = syscall.GetsockoptInt(fd, syscall.IPPROTO_TCP, o)
	}
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	for i, o := range options {
		_ = syscall.SetsockoptInt(fd, syscall.IPPROTO_TCP, o, had[i])
	}
	return c.(*net.TCPConn), nil
}
