// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"time"

	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/linux/nft"
)

// nftWriters are the processes that write to nf_tables: the rules of nftables and of
// iptables-nft.
type nftWriters struct{ *nft.Writers }

func openWriters() (writers, error) {
	w, err := nft.OpenWriters()
	if err != nil {
		return nil, err
	}
	return nftWriters{w}, nil
}

// Since implements writers.
func (w nftWriters) Since(t time.Time) (all []engine.Writer) {
	for _, one := range w.Writers.Since(t) {
		all = append(all, engine.Writer(one))
	}
	return all
}
