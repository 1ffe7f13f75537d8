//go:build !linux

package platform

import (
	"errors"
	"net"

	"github.com/tandem-proxy/tandem/core/diagnosis"
	"github.com/tandem-proxy/tandem/core/flows"
)

// flowTable is flows.Table with an end.
type flowTable interface {
	flows.Table
	Close() error
}

func openFlows() (flowTable, error) {
	return nil, errors.New("this system has no table of tracked flows that can be edited")
}

// machine is the only site there is.
type machine struct{ net.ListenConfig }

func openSite() (site, error) { return &machine{}, nil }

// Close has nothing to close.
func (*machine) Close() error { return nil }

// examineHost checks what is not about one mode.
func examineHost() []diagnosis.Check { return nil }
