package hns

// HNS is the Host Networking Service. Calls cannot be cancelled and may take
// seconds. Their errors are of type *Error where HNS itself refused. It is safe
// for concurrent use.
//
// The comments say what a call costs in functions of its DLL, of which each may
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

	Balancers() ([]LoadBalancer, error)                              // 1, and 3 for each
	CreateBalancer(LoadBalancer) (LoadBalancer, error)               // 3
	ModifyBalancer(id string, to LoadBalancer) (LoadBalancer, error) // 4
	DeleteBalancer(id string) error                                  // 1
}
