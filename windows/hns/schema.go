package hns

import "encoding/json"

// The objects of HNS, in the words of its schema 2.0. The names of fields are
// those of the JSON; what is not here is never set by us and ignored when read.

// Network is a virtual network.
type Network struct {
	ID       string `json:"ID,omitempty"`
	Name     string `json:",omitempty"`
	Type     string `json:",omitempty"`
	Policies []Policy
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

// RemoteSubnet says behind which node a range of pods lies
// (PolicyRemoteSubnet).
type RemoteSubnet struct {
	DestinationPrefix string
	ProviderAddress   string
}

// Provider is the address of the node behind which an endpoint lies
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
}

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
