package hns

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
)

// The names by which the endpoint of the source VIP is known: a proposal
// (kubernetes#123014) and Calico's.
var sourceNames = [...]string{"sourcevip", "Calico_ep"}

// sourceVIP finds the address that an overlay's load balancers send from. It
// must be known to the network's address management, so it is never made up:
// the one that is set, that of an endpoint with a known name, or the one that
// flannel's scripts have reserved.
func (s Settings) sourceVIP(all []Endpoint) (netip.Addr, error) {
	if s.SourceVIP.IsValid() {
		return s.SourceVIP, nil
	}
	for _, name := range sourceNames {
		for _, e := range all {
			if e.Name != name {
				continue
			}
			if as := addresses(e); len(as) > 0 {
				return as[0], nil
			}
		}
	}
	if a, err := readSourceVIP(s.SourceVIPFile); err == nil {
		return a, nil
	}
	return netip.Addr{}, errors.New("an overlay network needs a source VIP: set --source-vip to an address that is reserved in the network's address management")
}

// readSourceVIP reads what host-local IPAM answered when the address was
// reserved.
func readSourceVIP(file string) (netip.Addr, error) {
	text, err := os.ReadFile(file)
	if err != nil {
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
	return netip.Addr{}, fmt.Errorf("no IPv4 address in %q", found)
}
