"""Access control: principals, roles and grants, and the decision whether a principal may do something.

Everything is kept in one reference of the realm, `access`, as rows and index entries of ordinary commits. A realm
without this reference has no access control. `bootstrap` creates the reference.
"""
