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
// seconds. Their errors are of type *Error where HNS itself rejected the call. It is safe
// for concurrent use.
//
// The comments state how many functions of the DLL a call needs; each may take
// milliseconds.
type HNS interface {
	Version() (Version, error)                    // 1
	Networks() ([]Network, error)                 // 1, and 3 for each
	Close() error                                 // closes handles; objects stay
	EndpointIDs(network string) ([]string, error) // 1: also the pods' of this node
	Endpoint(id string) (Endpoint, error)         // 3

	// CreateEndpoint creates an endpoint: 3, and 1 to open its network, whose handle is
	// kept for the next call.
	CreateEndpoint(Endpoint) (Endpoint, error)
	DeleteEndpoint(id string) error // 1

	BalancerIDs() ([]string, error)                                  // 1
	Balancer(id string) (LoadBalancer, error)                        // 3
	CreateBalancer(LoadBalancer) (LoadBalancer, error)               // 3
	ModifyBalancer(id string, to LoadBalancer) (LoadBalancer, error) // 4
	DeleteBalancer(id string) error                                  // 1
}

// The objects of HNS, as named in its schema 2.0. Fields have their JSON names; fields
// that are not listed are never set, and ignored when read.

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

// Policy is a typed setting of a network or an endpoint.
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

// RemoteSubnet names the node that a range of pod addresses is behind
// (PolicyRemoteSubnet).
type RemoteSubnet struct {
	DestinationPrefix string
	ProviderAddress   string
}

// Provider is the address of the node that an endpoint is behind (PolicyProvider).
type Provider struct {
	ProviderAddress string `json:",omitempty"`
}

// Endpoint is an endpoint of a network: a local one, such as a pod's, or a remote one.
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

// EndpointDegraded is the State of an endpoint that has lost its port of the virtual switch
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

// StateDegraded is the State of a load balancer whose rules are not in the virtual switch
// (Microsoft's scripts in wcnscripts #21 and #24 look for it).
const StateDegraded = 4

func (lb LoadBalancer) degraded() bool { return lb.State == StateDegraded }

// request returns the load balancer without the fields that HNS sets.
func (lb LoadBalancer) request() LoadBalancer {
	lb.ID, lb.State, lb.Health = "", 0, Health{}
	return lb
}

// Condition is the State of an object that is read. A value of another type than number is
// taken for 0: it must not make the object unreadable.
type Condition uint32

// UnmarshalJSON never fails.
func (c *Condition) UnmarshalJSON(text []byte) error {
	var n uint32
	if json.Unmarshal(text, &n) == nil {
		*c = Condition(n)
	}
	return nil
}

// Health is the last error of an object as HNS reports it: 0 is none. The old API has it in
// LastErrorCode, hcsshim's types in Data, which is untyped. Other values are taken for 0:
// they must not make the object unreadable.
type Health struct{ LastErrorCode Code }

// UnmarshalJSON never fails.
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

// DistributeBySource sends all connections of a client to one endpoint. The default, 0,
// chooses per connection.
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
	// from 15.4, where the call succeeds and changes nothing (kubernetes#131466): its
	// table is not used, and what Modify returns is compared.
	Modify bool
	// DefaultSource uses the network's own address where a load balancer on l2bridge has
	// no source VIP. Builds of Server 2019 use the VIP instead
	// (kubernetes/community#8890, kubernetes#137455); no later version is reported to.
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

// Code is an error code: of an HRESULT of FACILITY_WIN32 the Win32 code, its low 16 bits,
// else the whole HRESULT, such as one of HNS.
type Code uint32

// An HRESULT has its facility in 13 bits (winerror.h).
const (
	facilityMask  = 0x1fff << 16
	facilityWin32 = 7 << 16
)

// CodeOf returns the code of a function's result: 0 for success.
func CodeOf(r dll.Response) Code {
	switch {
	case int32(r.Result) >= 0:
		return 0
	case r.Result&facilityMask == facilityWin32:
		return Code(r.Result & 0xffff)
	}
	return Code(r.Result)
}

// The codes that are distinguished, with their names in winerror.h.
const (
	codeInvalidHandle    Code = 6          // ERROR_INVALID_HANDLE
	codeModuleNotFound   Code = 0x7e       // ERROR_MOD_NOT_FOUND
	codeNoFunction       Code = 0x7f       // ERROR_PROC_NOT_FOUND
	codeAlreadyExists    Code = 0xb7       // ERROR_ALREADY_EXISTS
	codeServiceStopped   Code = 0x426      // ERROR_SERVICE_NOT_ACTIVE
	codeNotFound         Code = 0x490      // ERROR_NOT_FOUND
	codeTimeout          Code = 0x5b4      // ERROR_TIMEOUT
	codeNoInterface      Code = 0x6b5      // RPC_S_UNKNOWN_IF
	codeServerGone       Code = 0x6ba      // RPC_S_SERVER_UNAVAILABLE
	codeCallFailed       Code = 0x6be      // RPC_S_CALL_FAILED
	codeCallNotExecuted  Code = 0x6bf      // RPC_S_CALL_FAILED_DNE
	codeNotRegistered    Code = 0x6d9      // EPT_S_NOT_REGISTERED
	codeObjectExists     Code = 0x1392     // ERROR_OBJECT_ALREADY_EXISTS
	codeNotImplemented   Code = 0x80004001 // E_NOTIMPL
	codeNetworkNotFound  Code = 0x803b0001 // HCN_E_NETWORK_NOT_FOUND
	codeEndpointNotFound Code = 0x803b0002 // HCN_E_ENDPOINT_NOT_FOUND
	codeSwitchPort       Code = 0x803b0007 // HCN_E_PORT_NOT_FOUND
	codePolicyNotFound   Code = 0x803b0008 // HCN_E_POLICY_NOT_FOUND
	codeInvalidPolicy    Code = 0x803b000d // HCN_E_INVALID_POLICY
	codePolicyExists     Code = 0x803b0012 // HCN_E_POLICY_ALREADY_EXISTS
	codePortExists       Code = 0x803b0013 // HCN_E_PORT_ALREADY_EXISTS
	codeUnsupported      Code = 0x803b0015 // HCN_E_REQUEST_UNSUPPORTED
	codeDegraded         Code = 0x803b0017 // HCN_E_DEGRADED_OPERATION
	codeInvalidReference Code = 0x803b001c // HCN_E_INVALID_JSON_REFERENCE
	codeOutsideSubnet    Code = 0x803b001e // HCN_E_INVALID_IP
	codeManagerStopped   Code = 0x803b0020 // HCN_E_MANAGER_STOPPED
	codeHasReferences    Code = 0x803b002c // HCN_E_ENTITY_HAS_REFERENCES
	codeBadInternalPort  Code = 0x803b002d // HCN_E_INVALID_INTERNAL_PORT
	codeAddressReserved  Code = 0x803b002f // HCN_E_ADDR_INVALID_OR_RESERVED
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

// NotFound reports whether an object does not exist: the one called for, or one that an
// argument refers to.
func (c Code) NotFound() bool {
	return c == codeNotFound || c == codeNetworkNotFound || c == codeEndpointNotFound || c == codePolicyNotFound
}

// noBalancer reports whether the load balancer of the call does not exist. HNS returns
// codeEndpointNotFound where an endpoint of it does not (commit.delete).
func noBalancer(err error) bool { return is(err, codeNotFound, codePolicyNotFound) }

func notFound(err error) bool {
	e, is := errors.AsType[*Error](err)
	return is && e.Code.NotFound()
}

// exists reports whether another object conflicts with the one to be created.
func exists(err error) bool {
	return is(err, codeAlreadyExists, codeObjectExists, codePolicyExists, codePortExists)
}

// notImplemented reports whether this version of HNS does not have the call.
func notImplemented(err error) bool { return is(err, codeNotImplemented, codeUnsupported) }

// down reports whether HNS is unavailable: whether it carried out the call is unknown.
func down(err error) bool {
	return errors.Is(err, ledger.ErrUnknown) || is(err, codeModuleNotFound, codeNoFunction, codeServiceStopped, codeTimeout,
		codeNoInterface, codeServerGone, codeCallFailed, codeCallNotExecuted, codeNotRegistered, codeManagerStopped)
}

// unknown marks with ledger.ErrUnknown the error of a call that may have been carried out.
func unknown(err error) error {
	if down(err) && !errors.Is(err, ledger.ErrUnknown) {
		return fmt.Errorf("%w: %w", err, ledger.ErrUnknown)
	}
	return err
}
