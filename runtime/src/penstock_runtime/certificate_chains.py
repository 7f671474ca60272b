"""Verification of certificate chains, alike under all versions of Python.

Since Python 3.13 default contexts verify chains strictly by RFC 5280. Chains of private authorities often
lack what it requires, such as an authority key identifier: those of some Kubernetes API servers, of a
company's engines, of Redis. Signatures, validity, names and purposes are verified in either mode.
"""

import ssl


def not_strict(context: ssl.SSLContext) -> ssl.SSLContext:
    """Return the context, which from now on verifies chains as Python did before 3.13."""
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context
