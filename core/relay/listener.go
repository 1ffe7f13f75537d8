package relay

import (
	"net"
	"net/netip"
)

// listener is where the TCP clients of a relay come.
type listener interface {
	accept() (client, error) // waits for one; net.ErrClosed is the end
	Close() error
}

// client is one who has come and is not served yet.
type client interface {
	from() netip.Addr
	serve(choice) // takes the client over, and waits for nothing
	reset()
}

// engine is a way to serve TCP connections that a system has beside goroutines.
// It is safe for concurrent use.
type engine interface {
	listener(*net.TCPListener) (listener, error) // takes the listener over
	resetAll()
	Close() // when nothing is left to serve
}

// plainListener takes clients whom goroutines serve. Any system can do that.
type plainListener struct {
	*net.TCPListener
	server *Server
}

func (l plainListener) accept() (client, error) {
	c, err := l.AcceptTCP()
	if err != nil {
		return nil, err
	}
	return &plainClient{c, l.server}, nil
}

type plainClient struct {
	*net.TCPConn
	server *Server
}

func (c *plainClient) from() netip.Addr {
	return plain(c.RemoteAddr().(*net.TCPAddr).AddrPort()).Addr()
}

func (c *plainClient) reset() { reset(c.TCPConn) }

func (c *plainClient) serve(to choice) {
	c.server.hold(c.TCPConn)
	c.server.work.Go(func() { c.server.connect(c.TCPConn, to, 0) })
}
