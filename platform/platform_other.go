//go:build !linux

package platform

import (
	"errors"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/flows"
)

// preference is the order in which auto tries the modes. There is none for this
// system yet: manifests can be planned here, not served.
func preference() []config.Mode { return []config.Mode{config.NFTables} }

type flowTable interface {
	flows.Table
	Close() error
}

func openFlows() (flowTable, error) {
	return nil, errors.New("this system has no table of tracked flows that can be edited")
}
