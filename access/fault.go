package access

import (
	"net/http"
	"time"

	"atoll.dev/internal/rest"
)

// Code is the code of a refusal: stable, in the body of the answer, and the label
// of the counter.
type Code string

// Codes of refusals.
const (
	MissingAuthentication  Code = "missing-authentication"
	AmbiguousSignature     Code = "ambiguous-signature"
	UnsupportedAlgorithm   Code = "unsupported-algorithm"
	IncompleteSignature    Code = "incomplete-signature"
	InvalidDate            Code = "invalid-date"
	WrongDate              Code = "wrong-scope-date"
	WrongRegion            Code = "wrong-scope-region"
	WrongService           Code = "wrong-scope-service"
	WrongTerminator        Code = "wrong-scope-terminator"
	SignatureExpired       Code = "signature-expired"
	SignatureInFuture      Code = "signature-not-yet-current"
	InvalidExpiry          Code = "invalid-expiry"
	UnsignedHeader         Code = "unsigned-header"
	MissingHeader          Code = "missing-signed-header"
	UnsignedPayload        Code = "unsigned-payload"
	PayloadMismatch        Code = "payload-mismatch"
	UnexpectedToken        Code = "unexpected-session-token"
	UnknownKey             Code = "unknown-access-key"
	DisabledKey            Code = "disabled-access-key"
	DeletedKey             Code = "deleted-access-key"
	ExpiredCredentials     Code = "expired-credentials"
	InvalidToken           Code = "invalid-token"
	STSUnavailable         Code = "sts-unavailable"
	IssuerUnavailable      Code = "issuer-unavailable"
	NotLinked              Code = "identity-not-linked"
	InvalidLinkCode        Code = "invalid-link-code"
	AmbiguousIdentity      Code = "ambiguous-identity"
	WrongGatewaySecret     Code = "wrong-gateway-secret"
	InvalidGatewayIdentity Code = "invalid-gateway-identity"
	WrongSignature         Code = "wrong-signature"
	InvalidTarget          Code = "invalid-request-target"
	BodyTooLarge           Code = "body-too-large"
	BodyIncomplete         Code = "body-incomplete"
	NotPrivileged          Code = "not-privileged"
	KeysNotReady           Code = "keys-not-ready"
	NotProvisioned         Code = "account-not-provisioned"
	AccessDenied           Code = "access-denied"
	PoliciesNotReady       Code = "policies-not-ready"
	PresignedMethod        Code = "presigned-method"
	TooManyBodies          Code = "too-many-bodies"
	Overloaded             Code = "overloaded"
	RateLimited            Code = "rate-limited"
	SignatureUsed          Code = "signature-used"
	SignaturesNotReady     Code = "signatures-not-ready"
)

// AWS's names of errors, sent as x-amzn-ErrorType.
const (
	missingToken     = "MissingAuthenticationTokenException"
	incomplete       = "IncompleteSignatureException"
	invalid          = "InvalidSignatureException"
	unrecognized     = "UnrecognizedClientException"
	expiredToken     = "ExpiredTokenException"
	accessDenied     = "AccessDeniedException"
	requestTooLarge  = "RequestTooLargeException"
	serviceUnavailab = "ServiceUnavailableException"
	tooManyRequests  = "TooManyRequestsException"
)

// answers is the one table of refusals.
var answers = map[Code]struct {
	status  int
	awsType string
}{
	MissingAuthentication:  {http.StatusForbidden, missingToken},
	AmbiguousSignature:     {http.StatusForbidden, incomplete},
	UnsupportedAlgorithm:   {http.StatusForbidden, incomplete},
	IncompleteSignature:    {http.StatusForbidden, incomplete},
	InvalidDate:            {http.StatusForbidden, incomplete},
	InvalidExpiry:          {http.StatusForbidden, incomplete},
	WrongDate:              {http.StatusForbidden, invalid},
	WrongRegion:            {http.StatusForbidden, invalid},
	WrongService:           {http.StatusForbidden, invalid},
	WrongTerminator:        {http.StatusForbidden, invalid},
	SignatureExpired:       {http.StatusForbidden, invalid},
	SignatureInFuture:      {http.StatusForbidden, invalid},
	UnsignedHeader:         {http.StatusForbidden, invalid},
	MissingHeader:          {http.StatusForbidden, invalid},
	UnsignedPayload:        {http.StatusForbidden, invalid},
	PayloadMismatch:        {http.StatusForbidden, invalid},
	WrongSignature:         {http.StatusForbidden, invalid},
	InvalidTarget:          {http.StatusForbidden, incomplete},
	UnexpectedToken:        {http.StatusForbidden, unrecognized},
	UnknownKey:             {http.StatusForbidden, unrecognized},
	DisabledKey:            {http.StatusForbidden, unrecognized},
	DeletedKey:             {http.StatusForbidden, unrecognized},
	ExpiredCredentials:     {http.StatusForbidden, expiredToken},
	InvalidToken:           {http.StatusForbidden, unrecognized},
	STSUnavailable:         {http.StatusServiceUnavailable, serviceUnavailab},
	IssuerUnavailable:      {http.StatusServiceUnavailable, serviceUnavailab},
	NotLinked:              {http.StatusForbidden, accessDenied},
	InvalidLinkCode:        {http.StatusForbidden, accessDenied},
	AmbiguousIdentity:      {http.StatusForbidden, incomplete},
	WrongGatewaySecret:     {http.StatusForbidden, unrecognized},
	InvalidGatewayIdentity: {http.StatusForbidden, incomplete},
	NotPrivileged:          {http.StatusForbidden, accessDenied},
	BodyTooLarge:           {http.StatusRequestEntityTooLarge, requestTooLarge},
	BodyIncomplete:         {http.StatusBadRequest, incomplete},
	KeysNotReady:           {http.StatusServiceUnavailable, serviceUnavailab},
	NotProvisioned:         {http.StatusForbidden, accessDenied},
	AccessDenied:           {http.StatusForbidden, accessDenied},
	PoliciesNotReady:       {http.StatusServiceUnavailable, serviceUnavailab},
	PresignedMethod:        {http.StatusForbidden, invalid},
	TooManyBodies:          {http.StatusTooManyRequests, tooManyRequests},
	SignatureUsed:          {http.StatusForbidden, invalid},
	SignaturesNotReady:     {http.StatusServiceUnavailable, serviceUnavailab},
	RateLimited:            {http.StatusTooManyRequests, tooManyRequests},
	Overloaded:             {http.StatusServiceUnavailable, serviceUnavailab},
}

// refuse returns the answer to a refused request. The reason must have nothing
// secret: neither the secret key nor the right signature.
func refuse(code Code, format string, args ...any) *rest.Error {
	a, ok := answers[code]
	if !ok {
		panic("access: no answer for " + string(code))
	}
	e := rest.Errorf(a.status, string(code), format, args...)
	e.Type = a.awsType
	if a.status == http.StatusServiceUnavailable || a.status == http.StatusTooManyRequests {
		e.RetryAfter = time.Second
	}
	return e
}

// quoted quotes a text of a request for a message: cut, and printable.
func quoted[T ~string](s T) string {
	const most = 64
	if len(s) > most {
		s = s[:most]
	}
	out := make([]byte, 0, len(s)+2)
	out = append(out, '\'')
	for i := range len(s) {
		c := s[i]
		if c < 0x20 || c > 0x7e || c == '\'' || c == '\\' {
			c = '?'
		}
		out = append(out, c)
	}
	return string(append(out, '\''))
}
