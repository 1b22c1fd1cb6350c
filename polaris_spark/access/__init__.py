"""Access control: principals, roles and grants, and the check whether a principal may do something.

One reference of the realm, `access`, contains all of them, as rows and index entries of ordinary commits. A realm
without this reference has no access control. `bootstrap` creates the reference.
"""
