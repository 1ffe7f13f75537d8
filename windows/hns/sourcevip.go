// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"

	"golang.org/x/text/encoding"
	"golang.org/x/text/encoding/unicode"
)

// The names of endpoints whose address is used as the source VIP: a proposal
// (kubernetes#123014), OpenShift's, Calico's and Tandem's.
var sourceNames = [...]string{"sourcevip", "VIPEndpoint", "Calico_ep", sourceName}

// sourceVIP finds the address that an overlay's load balancers send from: the one
// that is set, that of an endpoint with a known name, or the one that flannel's
// start scripts have reserved. Without any it is not valid: then one is to be had
// from HNS.
func (s Settings) sourceVIP(all []Endpoint) netip.Addr {
	if s.SourceVIP.IsValid() {
		return s.SourceVIP
	}
	for _, name := range sourceNames {
		for _, e := range all {
			if e.Name != name || e.remote() {
				continue
			}
			if as := addresses(e); len(as) > 0 {
				return as[0]
			}
		}
	}
	a, err := readSourceVIP(s.SourceVIPFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.Log.Warn("reading the source VIP failed", "file", s.SourceVIPFile, "err", err)
	}
	return a
}

func isSource(e Endpoint) bool { return e.Name == sourceName && !e.remote() }

// maxSourceVIP is how much of the file is read: every user may make one in C:\.
const maxSourceVIP = 64 << 10

// readSourceVIP reads what host-local IPAM answered when the address was reserved.
// PowerShell writes UTF-16 or UTF-8, with a byte order mark.
func readSourceVIP(file string) (netip.Addr, error) {
	f, err := os.Open(file)
	if err != nil {
		return netip.Addr{}, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxSourceVIP))
	if err != nil {
		return netip.Addr{}, err
	}
	if text, err = (&encoding.Decoder{Transformer: unicode.BOMOverride(encoding.Nop.NewDecoder())}).Bytes(text); err != nil {
		return netip.Addr{}, err
	}
	return parseSourceVIP(text)
}

func parseSourceVIP(text []byte) (netip.Addr, error) {
	var answer struct {
		IP4 struct {
			IP string `json:"ip"`
		} `json:"ip4"`
		IPs []struct {
			Address string `json:"address"`
		} `json:"ips"`
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		return netip.Addr{}, err
	}
	found := []string{answer.IP4.IP}
	for _, ip := range answer.IPs {
		found = append(found, ip.Address)
	}
	for _, s := range found {
		if p, err := netip.ParsePrefix(s); err == nil && p.Addr().Is4() {
			return p.Addr(), nil
		}
	}
	return netip.Addr{}, fmt.Errorf("no IPv4 address among %d", len(found))
}
