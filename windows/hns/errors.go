// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"errors"
	"fmt"
	"slices"

	"github.com/tandem-proxy/tandem/core/ledger"
)

// Error is what HNS answered to a call that it did not carry out.
type Error struct {
	Call   string // the function, such as "HcnCreateLoadBalancer"
	Code   Code
	Detail string // HNS's message, if any
}

// Error implements error.
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

// The codes that are distinguished.
const (
	codeInvalidHandle    Code = 6
	codeModuleNotFound   Code = 0x7e
	codeAlreadyExists    Code = 0xb7
	codeServiceStopped   Code = 0x426
	codeNotFound         Code = 0x490
	codeTimeout          Code = 0x5b4
	codeServerGone       Code = 0x6ba // RPC_S_SERVER_UNAVAILABLE
	codeCallFailed       Code = 0x6be // RPC_S_CALL_FAILED
	codeCallNotExecuted  Code = 0x6bf
	codeObjectExists     Code = 0x1392 // ERROR_OBJECT_ALREADY_EXISTS
	codeNotImplemented   Code = 0x80004001
	codeNetworkNotFound  Code = 0x803b0001
	codeEndpointNotFound Code = 0x803b0002
	codeSwitchPort       Code = 0x803b0007
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
		{codeAlreadyExists, "exists already"},
		{codeServiceStopped, "the service of HNS is stopped"},
		{codeNotFound, "not found"},
		{codeServerGone, "HNS is unavailable"},
		{codeCallFailed, "the remote procedure call failed"},
		{codeObjectExists, "exists already: another endpoint has the address, or another load balancer the frontend"},
		{codeNotImplemented, "not implemented"},
		{codeNetworkNotFound, "the network does not exist"},
		{codeEndpointNotFound, "the endpoint does not exist"},
		{codePolicyExists, "exists already"},
		{codeInvalidReference, "a reference is missing: HNS takes no load balancer without endpoints"},
		{codeSwitchPort, "the port of the virtual switch was not found: a pod's endpoint has lost it, or is about to go"},
		{codeInvalidPolicy, "the policy is invalid: HNS takes no load balancer without endpoints"},
		{codePortExists, "exists already: another object or a listening process has the address or port; see tandem hns dump and netstat -ano"},
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
	var e *Error
	return errors.As(err, &e) && slices.Contains(codes, e.Code)
}

// notFound: an object, which may be the one that an argument names, is not
// there.
func notFound(err error) bool {
	return is(err, codeNotFound, codeNetworkNotFound, codeEndpointNotFound)
}

// exists: another object conflicts with it.
func exists(err error) bool {
	return is(err, codeAlreadyExists, codeObjectExists, codePolicyExists, codePortExists)
}

// addressTaken: there is another endpoint with the address.
func addressTaken(err error) bool {
	return exists(err) || is(err, codeAddressReserved)
}

// notImplemented: this HNS cannot do it, and never will.
func notImplemented(err error) bool { return is(err, codeNotImplemented, codeUnsupported) }

// down: HNS itself is not there. Whether the call was carried out is not known.
func down(err error) bool {
	return errors.Is(err, ledger.ErrUnknown) || is(err, codeModuleNotFound, codeServiceStopped, codeTimeout,
		codeServerGone, codeCallFailed, codeCallNotExecuted, codeManagerStopped)
}

// unknown marks the error of a call that may have been carried out.
func unknown(err error) error {
	if down(err) && !errors.Is(err, ledger.ErrUnknown) {
		return fmt.Errorf("%w: %w", err, ledger.ErrUnknown)
	}
	return err
}

// HandleLost reports whether a call with a handle failed in a way after which the
// handle must not be used again: it or its object no longer exists, or HNS was
// restarted, whose new process does not know it. With again the call was not
// carried out, and may be made once more with a new handle.
func HandleLost(err error) (lost, again bool) {
	again = is(err, codeInvalidHandle, codeNetworkNotFound, codeNotFound)
	return again || down(err), again
}
