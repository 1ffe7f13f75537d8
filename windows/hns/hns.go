// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/windows/hns/dll"
)

// HNS is the Host Networking Service. Calls cannot be cancelled and may take
// seconds. Their errors are of type *Error where HNS itself refused. It is safe
// for concurrent use.
//
// The comments state what a call costs in functions of its DLL, of which each may
// take HNS milliseconds.
type HNS interface {
	Version() (Version, error)                    // 1
	Networks() ([]Network, error)                 // 1, and 3 for each
	Close() error                                 // what is held open; the objects stay
	EndpointIDs(network string) ([]string, error) // 1: also the pods' of this node
	Endpoint(id string) (Endpoint, error)         // 3

	// CreateEndpoint makes an endpoint of a network, which stays open for the
	// next: 3, and 1 for the first.
	CreateEndpoint(Endpoint) (Endpoint, error)
	DeleteEndpoint(id string) error // 1

	BalancerIDs() ([]string, error)                                  // 1
	Balancer(id string) (LoadBalancer, error)                        // 3
	CreateBalancer(LoadBalancer) (LoadBalancer, error)               // 3
	ModifyBalancer(id string, to LoadBalancer) (LoadBalancer, error) // 4
	DeleteBalancer(id string) error                                  // 1
}

// The objects of HNS, as named in its schema 2.0. The names of fields are
// those of the JSON; fields not listed are never set by us and ignored when read.

// Network is a virtual network.
type Network struct {
	ID       string `json:"ID,omitempty"`
	Name     string `json:",omitempty"`
	Type     string `json:",omitempty"`
	Policies []Policy
	Ipams    []Ipam `json:",omitempty"` // only in what is read
}

// Ipam has the ranges of addresses of a network.
type Ipam struct {
	Subnets []struct {
		IpAddressPrefix string `json:",omitempty"`
	} `json:",omitempty"`
}

// Policy is a setting of a network or an endpoint, of a type.
type Policy struct {
	Type     string
	Settings json.RawMessage `json:",omitempty"`
}

// The types of networks and policies that matter here.
const (
	TypeOverlay  = "Overlay"
	TypeL2Bridge = "L2Bridge"
	TypeL2Tunnel = "L2Tunnel"

	PolicyRemoteSubnet = "RemoteSubnetRoute"
	PolicyProvider     = "ProviderAddress"
)

// RemoteSubnet states behind which node a range of pods is
// (PolicyRemoteSubnet).
type RemoteSubnet struct {
	DestinationPrefix string
	ProviderAddress   string
}

// Provider is the address of the node behind which an endpoint is
// (PolicyProvider).
type Provider struct {
	ProviderAddress string `json:",omitempty"`
}

// Endpoint is a port of a network: of a pod, or of something elsewhere.
type Endpoint struct {
	ID                 string     `json:"ID,omitempty"`
	Name               string     `json:",omitempty"`
	HostComputeNetwork string     `json:",omitempty"`
	Policies           []Policy   `json:",omitempty"`
	IpConfigurations   []IpConfig `json:",omitempty"`
	MacAddress         string     `json:",omitempty"`
	Flags              uint32     `json:",omitempty"`
	SchemaVersion      Version    `json:",omitzero"`
	State              Condition  `json:",omitempty"` // only in what is read
	Health             Health     `json:",omitzero"`  // only in what is read
}

// EndpointDegraded is the State of an endpoint that has lost its port of the switch
// (hcsshim, internal/hns EndpointState).
const EndpointDegraded = 5

func (e Endpoint) remote() bool { return e.Flags&FlagRemote != 0 }

func (e Endpoint) degraded() bool { return e.State == EndpointDegraded }

// IpConfig is an address of an endpoint.
type IpConfig struct {
	IpAddress    string `json:",omitempty"`
	PrefixLength uint8  `json:",omitempty"`
}

// FlagRemote marks an endpoint that is not on this node.
const FlagRemote = 1

// LoadBalancer is a load balancer policy.
type LoadBalancer struct {
	ID                   string        `json:"ID,omitempty"`
	HostComputeEndpoints []string      `json:",omitempty"` // ids
	SourceVIP            string        `json:",omitempty"`
	FrontendVIPs         []string      `json:",omitempty"` // none: the node's own addresses
	PortMappings         []PortMapping `json:",omitempty"`
	SchemaVersion        Version       `json:",omitzero"`
	Flags                uint32        `json:",omitempty"`
	State                Condition     `json:",omitempty"` // only in what is read
	Health               Health        `json:",omitzero"`  // only in what is read
}

// StateDegraded is the State of a load balancer whose rules are not in the switch
// (Microsoft's scripts in wcnscripts #21 and #24 look for it).
const StateDegraded = 4

func (lb LoadBalancer) degraded() bool { return lb.State == StateDegraded }

// asked is the load balancer as HNS is asked for it: without what only HNS decides.
func (lb LoadBalancer) asked() LoadBalancer {
	lb.ID, lb.State, lb.Health = "", 0, Health{}
	return lb
}

// Condition is the State of an object that is read. Anything but a number counts as none: what
// HNS says of it otherwise must not make the object unreadable.
type Condition uint32

// UnmarshalJSON implements json.Unmarshaler. It never fails.
func (c *Condition) UnmarshalJSON(text []byte) error {
	var n uint32
	if json.Unmarshal(text, &n) == nil {
		*c = Condition(n)
	}
	return nil
}

// Health is the last error of an object as HNS reports it: 0 is none. In the old API it is
// a field of its own, in hcsshim's types part of data of any kind: anything else
// counts as none, since nothing else of the object depends on it.
type Health struct{ LastErrorCode Code }

// UnmarshalJSON implements json.Unmarshaler. It never fails.
func (h *Health) UnmarshalJSON(text []byte) error {
	var form struct{ LastErrorCode, Data any }
	if json.Unmarshal(text, &form) != nil {
		return nil
	}
	data, _ := form.Data.(map[string]any)
	for _, v := range []any{form.LastErrorCode, data["LastErrorCode"]} {
		if n, ok := v.(float64); ok && n != 0 {
			h.LastErrorCode = Code(uint32(int64(n)))
		}
	}
	return nil
}

// String is appended to the object's description; it is empty without an error.
func (h Health) String() string {
	if h.LastErrorCode == 0 {
		return ""
	}
	return fmt.Sprintf(" (last error: %s)", h.LastErrorCode)
}

// PortMapping is what a LoadBalancer listens on and sends to.
type PortMapping struct {
	Protocol         uint32 `json:",omitempty"`
	InternalPort     uint16 `json:",omitempty"`
	ExternalPort     uint16 `json:",omitempty"`
	DistributionType uint32 `json:",omitempty"`
	Flags            uint32 `json:",omitempty"`
}

// The flags of load balancers and their port mappings. hcsshim does not know
// FlagVIPExternalIP, which kube-proxy uses since 1.20.
const (
	FlagDSR  = 1
	FlagIPv6 = 2

	FlagLocalRoutedVIP = 2
	FlagUseMux         = 4
	FlagPreserveDIP    = 8
	FlagVIPExternalIP  = 16
)

// DistributeBySource sends all connections of a client to one endpoint. The
// default is 0, by connection.
const DistributeBySource = 2

// Version is a version of HNS, or of its schema.
type Version struct{ Major, Minor int }

// String returns "major.minor".
func (v Version) String() string { return fmt.Sprintf("%d.%d", v.Major, v.Minor) }

func (v Version) atLeast(major, minor int) bool {
	return v.Major > major || v.Major == major && v.Minor >= minor
}

// oldest is the first version with the API that is used here (Windows Server
// 2019).
var oldest = Version{9, 2}

// usable reports why a version cannot be used.
func (v Version) usable() error {
	if v.atLeast(oldest.Major, oldest.Minor) {
		return nil
	}
	return fmt.Errorf("this HNS has version %s: %s is needed (Windows Server 2019)", v, oldest)
}

// Features are what a version can do, by the tables of hcsshim
// (hcn/hcnglobals.go) but for Modify and DefaultSource. They are worked out here since hcsshim
// caches a failed query of HNS permanently.
type Features struct {
	DSR       bool
	DualStack bool
	Affinity  bool
	// Modify changes a load balancer in place. hcsshim (0.14.1, and 0.15.0) says
	// from 15.4, where the call succeeds and changes nothing (kubernetes#131466):
	// its answer is not requested, and what Modify returns is compared.
	Modify bool
	// DefaultSource takes the network's own address for a load balancer of an
	// l2bridge without a source VIP. Builds of Server 2019 take the VIP instead
	// (kubernetes/community#8890, kubernetes#137455); of later versions there
	// is no such report.
	DefaultSource bool
}

// Features returns what a version can do.
func (v Version) Features() Features {
	return Features{
		DSR:           v.Major == 9 && v.Minor >= 3 || v.atLeast(10, 2),
		DualStack:     v.atLeast(11, 10),
		Affinity:      v.atLeast(12, 0),
		Modify:        v.atLeast(15, 5),
		DefaultSource: v.atLeast(10, 0),
	}
}

// Error is what HNS answered to a call that it did not carry out.
type Error struct {
	Call   string // the function, such as "HcnCreateLoadBalancer"
	Code   Code
	Detail string // HNS's message, if any
}

func (e *Error) Error() string {
	s := fmt.Sprintf("%s: %s", e.Call, e.Code)
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	return s
}

// Code is a code of HNS or of Windows: of an HRESULT of facility 7 the low 16
// bits, else all of it.
type Code uint32

// CodeOf returns the code in what a function returned: 0 if it is a success.
func CodeOf(r dll.Response) Code {
	switch {
	case int32(r.Result) >= 0:
		return 0
	case r.Result&0x1fff0000 == 7<<16:
		return Code(r.Result & 0xffff)
	}
	return Code(r.Result)
}

// The codes that are distinguished.
const (
	codeInvalidHandle    Code = 6
	codeModuleNotFound   Code = 0x7e
	codeNoFunction       Code = 0x7f
	codeAlreadyExists    Code = 0xb7
	codeServiceStopped   Code = 0x426
	codeNotFound         Code = 0x490
	codeTimeout          Code = 0x5b4
	codeNoInterface      Code = 0x6b5 // RPC_S_UNKNOWN_IF
	codeServerGone       Code = 0x6ba // RPC_S_SERVER_UNAVAILABLE
	codeCallFailed       Code = 0x6be // RPC_S_CALL_FAILED
	codeCallNotExecuted  Code = 0x6bf
	codeNotRegistered    Code = 0x6d9  // EPT_S_NOT_REGISTERED
	codeObjectExists     Code = 0x1392 // ERROR_OBJECT_ALREADY_EXISTS
	codeNotImplemented   Code = 0x80004001
	codeNetworkNotFound  Code = 0x803b0001
	codeEndpointNotFound Code = 0x803b0002
	codeSwitchPort       Code = 0x803b0007
	codePolicyNotFound   Code = 0x803b0008 // HCN_E_POLICY_NOT_FOUND
	codeInvalidPolicy    Code = 0x803b000d
	codePolicyExists     Code = 0x803b0012
	codePortExists       Code = 0x803b0013
	codeUnsupported      Code = 0x803b0015
	codeDegraded         Code = 0x803b0017
	codeInvalidReference Code = 0x803b001c
	codeOutsideSubnet    Code = 0x803b001e
	codeManagerStopped   Code = 0x803b0020
	codeHasReferences    Code = 0x803b002c
	codeBadInternalPort  Code = 0x803b002d
	codeAddressReserved  Code = 0x803b002f
)

// String returns the code with its meaning, where that is known.
func (c Code) String() string {
	for _, k := range [...]struct {
		code Code
		text string
	}{
		{codeModuleNotFound, "this system has no HNS"},
		{codeNoFunction, "this HNS has no such function"},
		{codeAlreadyExists, "exists already"},
		{codeServiceStopped, "the service of HNS is stopped"},
		{codeNotFound, "not found"},
		{codeNoInterface, "HNS is unavailable: its service is stopped, or not ready yet"},
		{codeServerGone, "HNS is unavailable"},
		{codeCallFailed, "the remote procedure call failed"},
		{codeNotRegistered, "HNS is unavailable: its service has registered no RPC endpoint"},
		{codeObjectExists, "exists already: another endpoint has the address, or another load balancer the frontend"},
		{codeNotImplemented, "not implemented"},
		{codeNetworkNotFound, "the network does not exist"},
		{codeEndpointNotFound, "the endpoint does not exist"},
		{codePolicyExists, "exists already"},
		{codeInvalidReference, "a reference is missing: HNS takes no load balancer without endpoints"},
		{codeSwitchPort, "the port of the virtual switch was not found: a pod's endpoint has lost it, or is about to go"},
		{codePolicyNotFound, "the load balancer does not exist"},
		{codeInvalidPolicy, "the policy is invalid: HNS takes no load balancer without endpoints"},
		{codePortExists, "exists already: another object, a listening process or an exclusion has the address or port, or there are no dynamic ports left for load balancers without DSR; " +
			"see tandem hns dump, netstat -ano and netsh int ipv4 show excludedportrange tcp"},
		{codeDegraded, "the network is degraded: restart HNS, or have the CNI plug-in make the network again"},
		{codeOutsideSubnet, "the address is in no subnet of the network: check the podCIDR of the node and --network-name"},
		{codeBadInternalPort, "the port mapping is invalid"},
		{codeAddressReserved, "the address is invalid or reserved: another endpoint may have it"},
		{codeManagerStopped, "HNS is stopping"},
		{codeHasReferences, "still in use"},
	} {
		if k.code == c {
			return fmt.Sprintf("%s (0x%x)", k.text, uint32(c))
		}
	}
	return fmt.Sprintf("error 0x%x", uint32(c))
}

func is(err error, codes ...Code) bool {
	e, is := errors.AsType[*Error](err)
	return is && slices.Contains(codes, e.Code)
}

// NotFound reports that an object, which may be the one that an argument names, is not
// there.
func (c Code) NotFound() bool {
	return c == codeNotFound || c == codeNetworkNotFound || c == codeEndpointNotFound || c == codePolicyNotFound
}

// noBalancer: the load balancer that was named is not there. An endpoint that is not there is one
// of its own (commit.delete).
func noBalancer(err error) bool { return is(err, codeNotFound, codePolicyNotFound) }

func notFound(err error) bool {
	e, is := errors.AsType[*Error](err)
	return is && e.Code.NotFound()
}

// exists: another object conflicts with it.
func exists(err error) bool {
	return is(err, codeAlreadyExists, codeObjectExists, codePolicyExists, codePortExists)
}

// notImplemented: this HNS cannot do it, and never will.
func notImplemented(err error) bool { return is(err, codeNotImplemented, codeUnsupported) }

// down: HNS itself is not there. Whether the call was carried out is not known.
func down(err error) bool {
	return errors.Is(err, ledger.ErrUnknown) || is(err, codeModuleNotFound, codeNoFunction, codeServiceStopped, codeTimeout,
		codeNoInterface, codeServerGone, codeCallFailed, codeCallNotExecuted, codeNotRegistered, codeManagerStopped)
}

// unknown marks the error of a call that may have been carried out.
func unknown(err error) error {
	if down(err) && !errors.Is(err, ledger.ErrUnknown) {
		return fmt.Errorf("%w: %w", err, ledger.ErrUnknown)
	}
	return err
}
