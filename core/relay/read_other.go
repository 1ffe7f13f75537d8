//go:build !linux

package relay

// zeroCopy says that net.TCPConn.ReadFrom moves data within the kernel.
const zeroCopy = false

func readers() (stream, datagrams newReader) { return newPortable, newPortableDatagrams }
