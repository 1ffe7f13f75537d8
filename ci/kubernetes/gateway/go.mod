module github.com/tandem-proxy/tandem/ci/kubernetes/gateway

go 1.26.0

// Only its definitions of resources are used, config/crd: the API server of the tests has routes.
require sigs.k8s.io/gateway-api v1.6.3 // v1.7.0 needs Go 1.27
